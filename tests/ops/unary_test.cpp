#include "lockstep/ops/unary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "lockstep/ops/binary.h"
#include "lockstep/runtime/autograd.h"
#include "tests/ops/op_harness.h"

namespace lockstep {
namespace {

using namespace test;

// The row of y = f(x) for x in [low, high). 3 x 7001 elements: several chunks, and rows that do not fill a
// vector.
void check_unary(const char* name, Tensor (*op)(const Tensor&), double (*f)(double), double low, double high,
                 double slack = 1) {
  OpRow row{.name = name,
            .inputs = {{.shape = {3, 37}, .low = low, .high = high}},
            .op = [op](const Tensors& x) { return op(x[0]); },
            .reference =
                [f](const Tensors& x) {
                  std::vector<double> y = x[0].to_vector<double>();
                  for (double& v : y) v = f(v);
                  return from_vector(y, x[0].shape());
                },
            .slack = slack,
            .bad = {{"got bool", [op] { op(zeros({2}, DType::boolean)); }}},
            .empty_shapes = {{0, 3}}};
  check_op(row);
  row.inputs[0].shape = {3, 7001};
  row.gradcheck = false;
  row.bad.clear();
  check_op(row);
  row.inputs[0].shape = {};
  check_op(row);
}

double phi(double x) { return 0.5 * std::erfc(-x * std::numbers::sqrt2 / 2); }
double logistic(double x) { return 1 / (1 + std::exp(-x)); }

// Sigmoid and tanh have slack 2: their gradients contain 1 - y, and a 16-bit y near 1 is saved rounded.

TEST(OpUnary, Neg) {
  check_unary(
      "neg", neg, [](double x) { return -x; }, -2, 2);
}
TEST(OpUnary, Exp) {
  check_unary(
      "exp", exp, [](double x) { return std::exp(x); }, -3, 3);
}
TEST(OpUnary, Log) {
  check_unary(
      "log", log, [](double x) { return std::log(x); }, 0.2, 5);
}
TEST(OpUnary, Sqrt) {
  check_unary(
      "sqrt", sqrt, [](double x) { return std::sqrt(x); }, 0.2, 5);
}
TEST(OpUnary, Abs) {
  check_unary(
      "abs", abs, [](double x) { return std::abs(x); }, -2, 2);
}
TEST(OpUnary, Relu) {
  check_unary(
      "relu", relu, [](double x) { return std::max(x, 0.0); }, -2, 2);
}
TEST(OpUnary, Sigmoid) { check_unary("sigmoid", sigmoid, logistic, -6, 6, 2); }
TEST(OpUnary, Tanh) {
  check_unary(
      "tanh", tanh, [](double x) { return std::tanh(x); }, -4, 4, 2);
}
TEST(OpUnary, Silu) {
  check_unary(
      "silu", silu, [](double x) { return x * logistic(x); }, -6, 6);
}
TEST(OpUnary, Gelu) {
  check_unary(
      "gelu", [](const Tensor& x) { return gelu(x); }, [](double x) { return x * phi(x); }, -5, 5);
}
TEST(OpUnary, GeluTanh) {
  check_unary(
      "gelu_tanh", [](const Tensor& x) { return gelu(x, Gelu::tanh); },
      [](double x) {
        return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
      },
      -5, 5);
}

TEST(OpUnary, ExtremesAreFiniteWithFiniteGradients) {
  struct {
    const char* name;
    Tensor (*op)(const Tensor&);
    double low, high;  // the values at -1000 and 1000
  } rows[] = {{"sigmoid", sigmoid, 0, 1},
              {"tanh", tanh, -1, 1},
              {"silu", silu, 0, 1000},
              {"gelu", [](const Tensor& x) { return gelu(x); }, 0, 1000},
              {"gelu_tanh", [](const Tensor& x) { return gelu(x, Gelu::tanh); }, 0, 1000},
              {"relu", relu, 0, 1000}};
  for (auto& row : rows)
    for (DType dtype : {DType::float64, DType::float32, DType::float16, DType::bfloat16}) {
      SCOPED_TRACE(concat(row.name, " ", dtype));
      Tensor x = from_vector<double>({-1000, 1000}).to(dtype).set_requires_grad();
      Tensor y = row.op(x);
      y.backward(ones({2}, dtype));
      EXPECT_EQ(y.to_vector<double>(), (std::vector<double>{row.low, row.high}));
      double slope = row.low == -1 || row.high == 1 ? 0 : 1;  // of the side that does not saturate
      EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{0, slope}));
    }
}

TEST(OpUnary, KinksAndNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Tensor x = from_vector<double>({0, nan}).set_requires_grad();
  Tensor y = relu(x);
  EXPECT_EQ(y.to_vector<double>()[0], 0);
  EXPECT_TRUE(std::isnan(y.to_vector<double>()[1]));
  y.backward(ones({2}, DType::float64));
  EXPECT_EQ(x.grad().to_vector<double>()[0], 0);
  x.set_grad({});
  abs(x).backward(ones({2}, DType::float64));
  EXPECT_EQ(x.grad().to_vector<double>()[0], 0);
  EXPECT_TRUE(std::isnan(x.grad().to_vector<double>()[1]));
}

TEST(OpUnary, NegOfIntegers) {
  EXPECT_EQ(neg(arange(3)).to_vector<int64_t>(), (std::vector<int64_t>{0, -1, -2}));
}

}  // namespace
}  // namespace lockstep
