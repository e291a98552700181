#include "lockstep/ops/layer_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/ops/op_harness.h"

namespace lockstep {
namespace {

using test::check_op;
using test::expect_error;

constexpr double kEps = 1e-5;

Tensor naive(const Tensor& x, int64_t length, const Tensor& weight, const Tensor& bias) {
  std::vector<double> y = x.to_vector<double>();
  for (size_t row = 0; row < y.size(); row += size_t(length)) {
    double mean = 0, var = 0;
    for (size_t j = 0; j < size_t(length); j++) mean += y[row + j] / double(length);
    for (size_t j = 0; j < size_t(length); j++) var += std::pow(y[row + j] - mean, 2) / double(length);
    for (size_t j = 0; j < size_t(length); j++) {
      y[row + j] = (y[row + j] - mean) / std::sqrt(var + kEps);
      if (weight.defined()) y[row + j] *= weight.to_vector<double>()[j];
      if (bias.defined()) y[row + j] += bias.to_vector<double>()[j];
    }
  }
  return from_vector(y, x.shape());
}

TEST(OpLayerNorm, Rows) {
  // Several axes; rows longer than the 32 lanes of a sum, with a rest; one group of rows and a part of one.
  struct Case {
    Shape x, normalized;
  };
  for (const Case& c : {Case{{2, 3, 2, 5}, {2, 5}}, Case{{6, 75}, {75}}, Case{{3, 4}, {3, 4}}}) {
    SCOPED_TRACE(concat(c.x));
    Shape empty_x = c.x;
    empty_x[0] = 0;
    check_op(
        {.name = "layer_norm",
         .inputs = {{.shape = c.x, .low = -1, .high = 3}, {.shape = c.normalized}, {.shape = c.normalized}},
         .op = [&](const Tensors& x) { return layer_norm(x[0], c.normalized, x[1], x[2], kEps); },
         .reference = [&](const Tensors& x) { return naive(x[0], c.normalized.numel(), x[1], x[2]); },
         .length = c.normalized.numel(),
         .slack = 2,
         .empty_shapes = c.x.size() > c.normalized.size()
                             ? std::vector<Shape>{empty_x, c.normalized, c.normalized}
                             : std::vector<Shape>{}});
  }
}

TEST(OpLayerNorm, WithoutParameters) {
  check_op({.name = "layer_norm",
            .inputs = {{.shape = {5, 9}, .low = -1, .high = 3}},
            .op = [](const Tensors& x) { return layer_norm(x[0], {9}, {}, {}, kEps); },
            .reference = [](const Tensors& x) { return naive(x[0], 9, {}, {}); },
            .length = 9,
            .slack = 2});
}

TEST(OpLayerNorm, BadInput) {
  const Tensor x = ones({2, 3, 4});
  expect_error("expected a floating-point dtype", [] { layer_norm(arange(4), {4}); });
  expect_error("got x of shape [2, 3, 4], expected it to end in [3]", [&] { layer_norm(x, {3}); });
  expect_error("expected it to end in [1, 2, 3, 4]", [&] { layer_norm(x, {1, 2, 3, 4}); });
  expect_error("expected it to end in []", [&] { layer_norm(x, {}); });
  expect_error("weight is float32 [3], expected floating [4]", [&] { layer_norm(x, {4}, ones({3})); });
  expect_error("bias is int64 [4]", [&] { layer_norm(x, {4}, ones({4}), arange(4)); });
  expect_error("eps -1", [&] { layer_norm(x, {4}, {}, {}, -1); });
}

TEST(OpLayerNorm, Float32ParametersOf16BitRows) {
  for (DType dtype : {DType::float16, DType::bfloat16}) {
    Tensor x = test::drawn(1, {50, 40}, -1, 3, dtype), w = test::drawn(2, {40}, -1, 1, DType::float32);
    Tensor b = test::drawn(3, {40}, -1, 1, DType::float32), dy = test::drawn(4, {50, 40}, -1, 1, dtype);
    auto run = [&](DType rows) {
      Tensors leaves{x.to(rows).clone(), w.clone(), b.clone()};
      for (Tensor& leaf : leaves) leaf.set_requires_grad();
      Tensor y = layer_norm(leaves[0], {40}, leaves[1], leaves[2], kEps);
      y.backward(dy.to(rows));
      return Tensors{y, leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
    };
    Tensors got = run(dtype), want = run(DType::float64);
    EXPECT_EQ(got[0].dtype(), dtype);
    EXPECT_EQ(got[2].dtype(), DType::float32);
    for (size_t i = 0; i < got.size(); i++)
      test::expect_close(got[i], want[i].to(DType::float64),
                         test::tolerance(i < 2 ? dtype : DType::float32, 50), concat("result ", i));
  }
}

// A mean of 10,000 deviations costs no digits, and the sums over many rows none either.
TEST(OpLayerNorm, LargeMeanAndManyRows) {
  std::vector<float> values;
  for (double v : test::draw(7, 4 * 3000, -std::sqrt(3.0), std::sqrt(3.0))) values.push_back(float(1e4 + v));
  Tensor x = from_vector(values, {4, 3000});
  test::expect_close(layer_norm(x, {3000}), naive(x.to(DType::float64), 3000, {}, {}), 2e-6, "y");

  const int64_t rows = 300000;
  Tensor w = ones({2}).set_requires_grad(), b = zeros({2}).set_requires_grad();
  layer_norm(test::drawn(1, {rows, 2}, -1, 1, DType::float32), {2}, w, b).backward(full({rows, 2}, 0.1));
  for (float v : b.grad().to_vector<float>()) EXPECT_NEAR(v, double(rows) * double(0.1f), 0.01);
}

}  // namespace
}  // namespace lockstep
