#include "lockstep/ops/softmax.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/ops/op_harness.h"

namespace lockstep {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// The line of elements along `axis` through each element, one after the other.
Tensor naive_softmax(const Tensor& x, int axis, bool logarithm) {
  std::vector<double> in = x.to_vector<double>(), out(in.size());
  const int64_t n = x.shape()[axis], stride = contiguous_strides(x.shape())[axis];
  for (int64_t i = 0; i < int64_t(in.size()); i++) {
    const int64_t first = i - i / stride % n * stride;
    double sum = 0;
    for (int64_t j = 0; j < n; j++) sum += std::exp(in[size_t(first + j * stride)] - in[size_t(i)]);
    out[size_t(i)] = logarithm ? -std::log(sum) : 1 / sum;
  }
  return from_vector(out, x.shape());
}

test::OpRow row(const Shape& shape, int64_t axis, bool logarithm) {
  const int normal = normalize_axis("test", axis, shape);
  auto f = logarithm ? log_softmax : softmax;
  Shape no_lines = shape;
  no_lines[normal == 0 ? shape.size() - 1 : 0] = 0;
  return {
      .name = concat(logarithm ? "log_softmax " : "softmax ", shape, " axis ", axis),
      .inputs = {{.shape = shape, .low = -3, .high = 3}},
      .op = [f, axis](const Tensors& x) { return f(x[0], axis); },
      .reference = [normal, logarithm](const Tensors& x) { return naive_softmax(x[0], normal, logarithm); },
      .length = shape[normal],
      .bad = {{"axis 3",
               [f] {
                 f(ones({2, 2}), 3);
               }},
              {"axis -3",
               [f] {
                 f(ones({2, 2}), -3);
               }},
              {"scalar", [f] { f(ones({}), 0); }},
              {"floating", [f] { f(arange(3), 0); }}},
      .empty_shapes = shape.size() > 1 ? std::vector<Shape>{no_lines} : std::vector<Shape>{}};
}

TEST(Softmax, LastAxis) { test::check_op(row({5, 13}, -1, false)); }
TEST(Softmax, MiddleAxis) { test::check_op(row({3, 7, 4}, 1, false)); }
TEST(Softmax, FirstAxis) { test::check_op(row({9, 4}, 0, false)); }
TEST(Softmax, OneLine) { test::check_op(row({33}, 0, false)); }
TEST(LogSoftmax, LastAxis) { test::check_op(row({5, 13}, -1, true)); }
TEST(LogSoftmax, MiddleAxis) { test::check_op(row({3, 7, 4}, 1, true)); }
TEST(LogSoftmax, FirstAxis) { test::check_op(row({9, 4}, 0, true)); }

// Printed by PyTorch 2.13 in float64.
TEST(Softmax, ValuesOfPyTorch) {
  Tensor x = from_vector<double>({0.5, -1.2, 2.0, 0.3, 1.5, 0.1, -0.7, 0.9, -2.0, 0.4, 0.8, -0.1}, {3, 4});
  test::expect_close(softmax(x, 0).select(1, 0),
                     from_vector<double>({0.2631324936512963, 0.7152682759694339, 0.021599230379269717}),
                     1e-14, "softmax");
  test::expect_close(log_softmax(x, 0).select(1, 0),
                     from_vector<double>({-1.3350975955161672, -0.3350975955161672, -3.8350975955161672}),
                     1e-14, "log_softmax");
}

TEST(Softmax, ExtremeAndMaskedValues) {
  for (DType dtype : {DType::float64, DType::float32, DType::bfloat16}) {
    Tensor x = from_vector<double>({1000, 0, -1e30, 0, -kInf, 0, -kInf, -kInf, -kInf}, {3, 3}).to(dtype);
    std::vector<double> y = softmax(x).to_vector<double>(), log_y = log_softmax(x).to_vector<double>();
    EXPECT_EQ(std::vector<double>(y.begin(), y.begin() + 6), (std::vector<double>{1, 0, 0, 0.5, 0, 0.5}));
    EXPECT_EQ(log_y[0], 0);
    EXPECT_EQ(log_y[1], dtype == DType::bfloat16 ? double(float(bfloat16(-1000.0f))) : -1000);
    EXPECT_NEAR(log_y[3], -0.693147, 3e-3);
    EXPECT_EQ(log_y[4], -kInf);
    EXPECT_TRUE(std::isnan(y[6]) &&
                std::isnan(log_y[8]));  // nothing to distribute; only this line is affected
  }
}

// C60: the sum over a long line is not a running float32 total.
TEST(Softmax, LongLine) {
  constexpr int64_t n = 1 << 20;
  Tensor y = softmax(zeros({n}));
  EXPECT_EQ(y.to_vector<float>().front(), 1.0f / n);
  EXPECT_NEAR(log_softmax(zeros({n})).to_vector<float>().back(), -std::log(double(n)), 1e-6);
}

TEST(Softmax, GradientIsOrthogonalToShifts) {
  Tensor x = test::drawn(1, {4, 50}).to(DType::float32).set_requires_grad();
  softmax(x).backward(test::drawn(2, {4, 50}).to(DType::float32));
  for (int64_t i = 0; i < 4; i++) {
    double sum = 0;
    for (double g : x.grad().select(0, i).to_vector<double>()) sum += g;
    EXPECT_NEAR(sum, 0, 1e-7);
  }
}

}  // namespace
}  // namespace lockstep
