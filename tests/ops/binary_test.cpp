#include "lockstep/ops/binary.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/runtime/autograd.h"
#include "tests/ops/op_harness.h"

namespace lockstep {
namespace {

using namespace test;

using BinaryFunction = Tensor (*)(const Tensor&, const Tensor&);

Tensor broadcast_reference(const Tensors& x, double (*f)(double, double)) {
  Shape shape = broadcast_shapes("reference", x[0].shape(), x[1].shape());
  std::vector<double> a = x[0].expand(shape).to_vector<double>(), b = x[1].expand(shape).to_vector<double>();
  for (size_t i = 0; i < a.size(); i++) a[i] = f(a[i], b[i]);
  return from_vector(a, shape);
}

// Every way to broadcast, small with gradcheck and once over several chunks.
void check_binary(const char* name, BinaryFunction op, double (*f)(double, double), OpInput a, OpInput b,
                  double slack = 1) {
  struct {
    Shape a, b;
    int64_t length;  // elements summed into one of a broadcast gradient
  } shapes[] = {{{4, 5}, {4, 5}, 1},    {{4, 5}, {5}, 4},        {{4, 1}, {1, 5}, 5},
                {{}, {2, 3, 4}, 24},    {{2, 1, 4}, {3, 1}, 24}, {{1}, {5, 4}, 20},
                {{3, 7001}, {7001}, 3}, {{7001, 3}, {3}, 7001},  {{3, 1}, {3, 7001}, 7001}};
  for (auto& [shape_a, shape_b, length] : shapes) {
    SCOPED_TRACE(concat(shape_a, " ", shape_b));
    a.shape = shape_a, b.shape = shape_b;
    OpRow row{.name = name,
              .inputs = {a, b},
              .op = [op](const Tensors& x) { return op(x[0], x[1]); },
              .reference = [f](const Tensors& x) { return broadcast_reference(x, f); },
              .length = length,
              .slack = slack,
              .gradcheck = length * shape_a.numel() < 100};
    if (row.gradcheck) {
      std::string tag = concat("[", name, "]");
      row.bad = {{tag,
                  [op] {
                    op(zeros({2, 3}), zeros({2, 4}));
                  }},
                 {"meta", [op] { op(zeros({2}), zeros({2}, DType::float32, "meta")); }},
                 {"got bool", [op] { op(zeros({2}, DType::boolean), zeros({2}, DType::boolean)); }}};
    }
    check_op(row);
  }
  OpRow none{.name = name,
             .inputs = {a, b},
             .op = [op](const Tensors& x) { return op(x[0], x[1]); },
             .reference = [f](const Tensors& x) { return broadcast_reference(x, f); },
             .empty_shapes = {{0, 3}, {3}},
             .gradcheck = false};
  none.inputs[0].shape = none.inputs[1].shape = {2};
  check_op(none);
}

TEST(OpBinary, Add) {
  check_binary("add", add, [](double a, double b) { return a + b; }, {}, {});
}
TEST(OpBinary, Sub) {
  check_binary("sub", sub, [](double a, double b) { return a - b; }, {}, {});
}
TEST(OpBinary, Mul) {
  check_binary("mul", mul, [](double a, double b) { return a * b; }, {}, {});
}
TEST(OpBinary, Div) {
  check_binary("div", div, [](double a, double b) { return a / b; }, {}, {.low = 0.5, .high = 2});
}
TEST(OpBinary, Pow) {
  check_binary(
      "pow", pow, [](double a, double b) { return std::pow(a, b); }, {.low = 0.3, .high = 2},
      {.low = -2, .high = 2.5}, 2);
}
TEST(OpBinary, Maximum) {
  check_binary("maximum", maximum, [](double a, double b) { return std::max(a, b); }, {}, {});
}
TEST(OpBinary, Minimum) {
  check_binary("minimum", minimum, [](double a, double b) { return std::min(a, b); }, {}, {});
}

TEST(OpBinary, Scalars) {
  struct {
    const char* name;
    Tensor (*op)(const Tensor&);
    double (*f)(double);
  } rows[] = {{"add", [](const Tensor& x) { return add(x, 0.75); }, [](double x) { return x + 0.75; }},
              {"sub", [](const Tensor& x) { return sub(x, 0.75); }, [](double x) { return x - 0.75; }},
              {"rsub", [](const Tensor& x) { return sub(0.75, x); }, [](double x) { return 0.75 - x; }},
              {"mul", [](const Tensor& x) { return mul(x, -1.5); }, [](double x) { return x * -1.5; }},
              {"div", [](const Tensor& x) { return div(x, 1.5); }, [](double x) { return x / 1.5; }},
              {"rdiv", [](const Tensor& x) { return div(1.5, x); }, [](double x) { return 1.5 / x; }},
              {"square", [](const Tensor& x) { return pow(x, 2); }, [](double x) { return x * x; }},
              {"pow", [](const Tensor& x) { return pow(x, 1.5); }, [](double x) { return std::pow(x, 1.5); }},
              {"maximum", [](const Tensor& x) { return maximum(x, 1.25); },
               [](double x) { return std::max(x, 1.25); }},
              {"minimum", [](const Tensor& x) { return minimum(x, 1.25); },
               [](double x) { return std::min(x, 1.25); }}};
  for (auto& row : rows)
    for (Shape shape : {Shape{3, 5}, Shape{3, 7001}})
      check_op({.name = concat(row.name, " of a scalar"),
                .inputs = {{.shape = shape, .low = 0.5, .high = 2}},
                .op = [&](const Tensors& x) { return row.op(x[0]); },
                .reference =
                    [&](const Tensors& x) {
                      std::vector<double> y = x[0].to_vector<double>();
                      for (double& v : y) v = row.f(v);
                      return from_vector(y, x[0].shape());
                    },
                .slack = 2,
                .empty_shapes = {{0, 4}},
                .gradcheck = shape[1] == 5});
}

TEST(OpBinary, Operators) {
  Tensor a = from_vector<float>({1, 2}), b = from_vector<float>({4, 8});
  EXPECT_EQ((a + b).to_vector<float>(), (std::vector<float>{5, 10}));
  EXPECT_EQ((a - b).to_vector<float>(), (std::vector<float>{-3, -6}));
  EXPECT_EQ((a * b).to_vector<float>(), (std::vector<float>{4, 16}));
  EXPECT_EQ((a / b).to_vector<float>(), (std::vector<float>{0.25, 0.25}));
  EXPECT_EQ((1 + a).to_vector<float>(), (std::vector<float>{2, 3}));
  EXPECT_EQ((1 - a).to_vector<float>(), (std::vector<float>{0, -1}));
  EXPECT_EQ((2 * a).to_vector<float>(), (std::vector<float>{2, 4}));
  EXPECT_EQ((2 / a).to_vector<float>(), (std::vector<float>{2, 1}));
  EXPECT_EQ((-a).to_vector<float>(), (std::vector<float>{-1, -2}));
}

TEST(OpBinary, Integers) {
  Tensor a = from_vector<int64_t>({5, -7, 3}), b = from_vector<int64_t>({2, 2, 3});
  EXPECT_EQ((a + b).to_vector<int64_t>(), (std::vector<int64_t>{7, -5, 6}));
  EXPECT_EQ((a - b).to_vector<int64_t>(), (std::vector<int64_t>{3, -9, 0}));
  EXPECT_EQ((a * b).to_vector<int64_t>(), (std::vector<int64_t>{10, -14, 9}));
  EXPECT_EQ((a * 2).to_vector<int64_t>(), (std::vector<int64_t>{10, -14, 6}));
  EXPECT_EQ(maximum(a, b).to_vector<int64_t>(), (std::vector<int64_t>{5, 2, 3}));
  EXPECT_EQ(minimum(a, 3).to_vector<int64_t>(), (std::vector<int64_t>{3, -7, 3}));
  Tensor bytes = from_vector<uint8_t>({200, 1, 2});
  EXPECT_EQ(add(bytes, bytes).to_vector<int>(), (std::vector<int>{144, 2, 4}));
  expect_error("[add] the scalar 0.5 is not whole, but the tensor is int64", [&] { add(a, 0.5); });
  expect_error("[div] expected floating-point operands, got int64", [&] { div(a, b); });
  expect_error("[pow] expected floating-point operands, got int64", [&] { pow(a, 2); });
}

TEST(OpBinary, Promotion) {
  using enum DType;
  struct {
    DType a, b, both;
  } rows[] = {{float32, float64, float64},  {float16, float32, float32}, {bfloat16, float32, float32},
              {float16, bfloat16, float32}, {int64, float16, float16},   {boolean, float32, float32},
              {uint8, bfloat16, bfloat16},  {int32, int64, int64},       {uint8, int32, int32},
              {boolean, int32, int32},      {float32, float32, float32}};
  for (auto& [a, b, both] : rows) {
    EXPECT_EQ(promote(a, b), both) << a << " " << b;
    EXPECT_EQ(promote(b, a), both) << b << " " << a;
    EXPECT_EQ(add(ones({2}, a), ones({2}, b)).dtype(), both);
    EXPECT_EQ(add(ones({2}, a), ones({2}, b)).to_vector<double>(), (std::vector<double>{2, 2}));
  }
  EXPECT_EQ(add(ones({2}, float16), 0.5).dtype(), float16);
  // The cast is recorded: each operand gets a gradient of its own dtype.
  Tensor a = ones({2}, float16).set_requires_grad(), b = full({2}, 3, bfloat16).set_requires_grad();
  mul(a, b).backward(ones({2}));
  EXPECT_EQ(a.grad().dtype(), float16);
  EXPECT_EQ(b.grad().dtype(), bfloat16);
  EXPECT_EQ(a.grad().to_vector<double>(), (std::vector<double>{3, 3}));
}

TEST(OpBinary, TiesShareTheGradientAndNaNWins) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (auto op : {static_cast<BinaryFunction>(maximum), static_cast<BinaryFunction>(minimum)}) {
    Tensor a = from_vector<double>({2, nan, 1}).set_requires_grad(),
           b = from_vector<double>({2, 1, nan}).set_requires_grad();
    Tensor y = op(a, b);
    EXPECT_EQ(y.to_vector<double>()[0], 2);
    EXPECT_TRUE(std::isnan(y.to_vector<double>()[1]) && std::isnan(y.to_vector<double>()[2]));
    y.backward(ones({3}, DType::float64));
    EXPECT_EQ(a.grad().to_vector<double>()[0], 0.5);
    EXPECT_EQ(b.grad().to_vector<double>()[0], 0.5);
  }
}

TEST(OpBinary, PowAtZero) {
  Tensor a = from_vector<double>({0, 0, 0}).set_requires_grad(),
         b = from_vector<double>({0, 1, 2}).set_requires_grad();
  Tensor y = pow(a, b);
  EXPECT_EQ(y.to_vector<double>(), (std::vector<double>{1, 0, 0}));
  y.backward(ones({3}, DType::float64));
  EXPECT_EQ(a.grad().to_vector<double>(), (std::vector<double>{0, 1, 0}));
  EXPECT_EQ(b.grad().to_vector<double>(), (std::vector<double>{0, 0, 0}));
}

// Only what a gradient reads is kept: here `a` alone, since `b` needs no gradient, so a may not be changed
// but b's partner may.
TEST(OpBinary, SavesOnlyWhatIsRead) {
  Tensor a = ones({4}).set_requires_grad(), b = full({4}, 3);
  Tensor c = a + 0.0;
  Tensor y = mul(c, b);
  c.detach().fill_(9);  // not read: the gradient of c is dy * b
  y.backward(ones({4}));
  EXPECT_EQ(a.grad().to_vector<float>(), (std::vector<float>{3, 3, 3, 3}));
  Tensor z = mul(a, b);
  b.fill_(5);
  EXPECT_THROW(z.backward(ones({4})), Error);
}

TEST(Cases, C28_diamond_of_ops) {
  Tensor x = scalar(2.0).set_requires_grad();
  Tensor y = 3 * x, a = 2 * y, b = 5 * y;
  (a + b).backward();
  EXPECT_EQ(x.grad().item(), 21);

  Tensor leaf = scalar(2.0).set_requires_grad();
  (leaf + leaf).backward();
  EXPECT_EQ(leaf.grad().item(), 2);

  Tensor shared = scalar(2.0).set_requires_grad();  // two roots over one sub-graph
  Tensor square = shared * shared;
  Tensor roots[] = {square * 2, square * 5};
  backward(roots);
  EXPECT_EQ(shared.grad().item(), 28);
}

TEST(Cases, C31_gradient_reduced_over_broadcast_axes) {
  auto total = [](const Tensor& y) { y.backward(ones(y.shape(), y.dtype())); };  // the gradient of the sum
  Tensor a = ones({1}).set_requires_grad();
  total(a * ones({5, 4}));
  EXPECT_EQ(a.grad().shape(), Shape({1}));
  EXPECT_EQ(a.grad().item(), 20);

  Tensor column = ones({3, 1}).set_requires_grad(), row = ones({1, 4}).set_requires_grad();
  total(column + row);
  EXPECT_EQ(column.grad().shape(), Shape({3, 1}));
  EXPECT_EQ(column.grad().to_vector<float>(), std::vector<float>(3, 4));
  EXPECT_EQ(row.grad().shape(), Shape({1, 4}));
  EXPECT_EQ(row.grad().to_vector<float>(), std::vector<float>(4, 3));

  Tensor number = scalar(1.0f).set_requires_grad();
  total(number + ones({2, 3, 4}));
  EXPECT_EQ(number.grad().shape(), Shape());
  EXPECT_EQ(number.grad().item(), 24);
}

}  // namespace
}  // namespace lockstep
