#include "lockstep/ops/batch_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/runtime/autograd.h"
#include "tests/ops/op_harness.h"

namespace lockstep {
namespace {

using test::check_op;
using test::expect_error;

constexpr double kEps = 1e-5;

// Row by row and twice over the data, the textbook way. Undefined weight, bias and residual: none.
Tensor naive(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& mean, const Tensor& var,
             bool relu, const Tensor& residual) {
  const int64_t C = x.shape().back(), rows = x.numel() / C;
  const std::vector<double> in = x.to_vector<double>();
  std::vector<double> y(in.size());
  for (int64_t c = 0; c < C; c++) {
    double m = 0, v = 0;
    for (int64_t r = 0; r < rows; r++) m += in[size_t(r * C + c)] / double(rows);
    for (int64_t r = 0; r < rows; r++) v += std::pow(in[size_t(r * C + c)] - m, 2) / double(rows);
    if (mean.defined()) m = mean.to_vector<double>()[size_t(c)], v = var.to_vector<double>()[size_t(c)];
    for (int64_t r = 0; r < rows; r++) {
      const size_t i = size_t(r * C + c);
      double z = (in[i] - m) / std::sqrt(v + kEps);
      if (weight.defined()) z *= weight.to_vector<double>()[size_t(c)];
      if (bias.defined()) z += bias.to_vector<double>()[size_t(c)];
      if (residual.defined()) z += residual.to_vector<double>()[i];
      y[i] = relu ? std::max(z, 0.0) : z;
    }
  }
  return from_vector(y, x.shape());
}

// C = 1, 6 and 70 make lines of many rows, of eleven rows with a rest, and of one row.
const Shape kShapes[] = {{3, 2, 4, 1}, {5, 3, 1, 6}, {9, 70}};

TEST(OpBatchNorm, TrainingRows) {
  for (const Shape& shape : kShapes)
    for (Activation activation : {Activation::none, Activation::relu}) {
      const bool relu = activation == Activation::relu;
      SCOPED_TRACE(concat(shape, relu ? " relu" : ""));
      const Shape channels{shape.back()};
      check_op({.name = "batch_norm",
                .inputs = {{.shape = shape, .low = -1, .high = 3}, {.shape = channels}, {.shape = channels}},
                .op =
                    [&](const Tensors& x) {
                      return batch_norm(x[0], x[1], x[2], {}, {}, true, 0.1, kEps, activation);
                    },
                .reference = [&](const Tensors& x) { return naive(x[0], x[1], x[2], {}, {}, relu, {}); },
                .length = 24,
                .slack = 2});
      check_op({.name = "batch_norm with residual",
                .inputs = {{.shape = shape, .low = -1, .high = 3},
                           {.shape = channels},
                           {.shape = channels},
                           {.shape = shape}},
                .op =
                    [&](const Tensors& x) {
                      return batch_norm(x[0], x[1], x[2], {}, {}, true, 0.1, kEps, activation, x[3]);
                    },
                .reference = [&](const Tensors& x) { return naive(x[0], x[1], x[2], {}, {}, relu, x[3]); },
                .length = 24,
                .slack = 2});
    }
}

TEST(OpBatchNorm, WithoutParameters) {
  check_op({.name = "batch_norm",
            .inputs = {{.shape = {6, 3, 5}, .low = -1, .high = 3}},
            .op = [](const Tensors& x) { return batch_norm(x[0], {}, {}, {}, {}, true, 0.1, kEps); },
            .reference = [](const Tensors& x) { return naive(x[0], {}, {}, {}, {}, false, {}); },
            .length = 18,
            .slack = 2});
}

TEST(OpBatchNorm, InferenceRow) {
  for (Activation activation : {Activation::none, Activation::relu})
    check_op({.name = "batch_norm",
              .inputs = {{.shape = {2, 3, 2, 5}},
                         {.shape = {5}},
                         {.shape = {5}},
                         {.shape = {5}, .differentiable = false},
                         {.shape = {5}, .low = 0.25, .high = 2, .differentiable = false}},
              .op =
                  [&](const Tensors& x) {
                    return batch_norm(x[0], x[1], x[2], x[3].contiguous(), x[4].contiguous(), false, 0.1,
                                      kEps, activation);
                  },
              .reference =
                  [&](const Tensors& x) {
                    return naive(x[0], x[1], x[2], x[3], x[4], activation == Activation::relu, {});
                  },
              .length = 12,
              .empty_shapes = {{0, 3, 2, 5}, {5}, {5}, {5}, {5}}});
}

TEST(OpBatchNorm, BadInput) {
  const Tensor x = ones({4, 3}), w = ones({3});
  expect_error("expected a floating-point dtype", [] { batch_norm(arange(4), {}, {}, {}, {}, true); });
  expect_error("got shape [4]", [] { batch_norm(ones({4}), {}, {}, {}, {}, true); });
  expect_error("weight is float32 [4], expected floating [3]",
               [&] { batch_norm(x, ones({4}), w, {}, {}, true); });
  expect_error("bias is int64", [&] { batch_norm(x, w, arange(3), {}, {}, true); });
  expect_error("running_mean and running_var go together", [&] { batch_norm(x, w, w, w, {}, true); });
  expect_error("inference needs running statistics", [&] { batch_norm(x, w, w, {}, {}, false); });
  expect_error("residual is float32 [3, 4], expected float32 [4, 3]", [&] {
    batch_norm(x, w, w, {}, {}, true, 0.1, kEps, Activation::none, ones({3, 4}));
  });
  expect_error("momentum 2", [&] { batch_norm(x, w, w, {}, {}, true, 2); });
  expect_error("", [&] { batch_norm(x, empty({3}, DType::float32, "meta"), w, {}, {}, true); });
}

// float32 parameters beside 16-bit images: their gradients stay float32.
TEST(OpBatchNorm, Float32ParametersOf16BitImages) {
  for (DType dtype : {DType::float16, DType::bfloat16}) {
    Tensor x = test::drawn(1, {8, 4, 6}, -1, 3, dtype), w = test::drawn(2, {6}, -1, 1, DType::float32);
    Tensor b = test::drawn(3, {6}, -1, 1, DType::float32), dy = test::drawn(4, {8, 4, 6}, -1, 1, dtype);
    auto run = [&](DType images) {
      Tensors leaves{x.to(images).clone(), w.clone(), b.clone()};
      for (Tensor& leaf : leaves) leaf.set_requires_grad();
      Tensor mean = zeros({6}), var = ones({6});
      Tensor y = batch_norm(leaves[0], leaves[1], leaves[2], mean, var, true, 0.1, kEps, Activation::relu);
      y.backward(dy.to(images));
      EXPECT_EQ(y.dtype(), images);
      return Tensors{y, leaves[0].grad(), leaves[1].grad(), leaves[2].grad(), mean, var};
    };
    Tensors got = run(dtype), want = run(DType::float64);
    EXPECT_EQ(got[2].dtype(), DType::float32);
    for (size_t i = 0; i < got.size(); i++)
      test::expect_close(got[i], want[i].to(DType::float64),
                         test::tolerance(i < 2 ? dtype : DType::float32, 32), concat("result ", i));
  }
}

TEST(OpBatchNorm, OnlyTheGradientsAskedFor) {
  Tensor x = test::drawn(1, {8, 6}, -1, 3, DType::float32), w = ones({6}), b = zeros({6}), r = zeros({8, 6});
  for (int wanted = 0; wanted < 4; wanted++) {
    Tensors leaves{x.clone(), w.clone(), b.clone(), r.clone()};
    leaves[size_t(wanted)].set_requires_grad();
    batch_norm(leaves[0], leaves[1], leaves[2], {}, {}, true, 0.1, kEps, Activation::relu, leaves[3])
        .backward(ones({8, 6}));
    for (int i = 0; i < 4; i++) EXPECT_EQ(leaves[size_t(i)].grad().defined(), i == wanted) << i;
  }
}

// Means of 10,000 deviations: sums of plain squares in float have no digit of the variance left.
TEST(OpBatchNorm, LargeMean) {
  const int64_t rows = 20000;
  std::vector<double> noise = test::draw(7, rows * 3, -std::sqrt(3.0), std::sqrt(3.0));
  std::vector<float> values;
  for (double v : noise) values.push_back(float(1e4 + v));
  values[0] = 0;  // a first value far from all others must not cost digits
  Tensor x = from_vector(values, {rows, 3}), mean = zeros({3}), var = ones({3});
  Tensor y = batch_norm(x, {}, {}, mean, var, true, 1.0);
  test::expect_close(y, naive(x.to(DType::float64), {}, {}, {}, {}, false, {}), 1e-5, "y");
  Tensor mean64 = zeros({3}, DType::float64), var64 = ones({3}, DType::float64);
  batch_norm(x.to(DType::float64), {}, {}, mean64, var64, true, 1.0);
  test::expect_close(mean, mean64, 1e-6, "mean");
  test::expect_close(var, var64, 1e-5, "variance");
}

TEST(OpBatchNorm, RunningStatistics) {
  Tensor x = test::drawn(1, {10, 4}, -1, 3, DType::float32), mean = zeros({4}), var = ones({4});
  const uint64_t version = mean.version();
  batch_norm(x.set_requires_grad(), ones({4}), zeros({4}), mean, var, true);
  EXPECT_GT(mean.version(), version);
  EXPECT_GT(var.version(), version);
  EXPECT_FALSE(mean.requires_grad());

  // Inference reads them and leaves them; its backward uses those of the forward pass.
  std::vector<float> before = mean.to_vector<float>();
  Tensor y = batch_norm(x, ones({4}), zeros({4}), mean, var, false);
  EXPECT_EQ(mean.to_vector<float>(), before);
  const float slope = 1 / std::sqrt(var.to_vector<float>()[0] + 1e-5f);
  var.fill_(100);
  y.backward(ones({10, 4}));
  EXPECT_NEAR(x.grad().to_vector<float>()[0], slope, 1e-6f);
}

TEST(OpBatchNorm, MetaMovesNothing) {
  const Device meta("meta");
  Tensor mean = zeros({4}, DType::float32, meta), var = ones({4}, DType::float32, meta);
  const uint64_t version = mean.version();
  Tensor y = batch_norm(empty({2, 3, 4}, DType::float32, meta), {}, {}, mean, var, true);
  EXPECT_EQ(y.shape(), (Shape{2, 3, 4}));
  EXPECT_EQ(mean.version(), version);
}

TEST(Cases, C39_batch_norm_one_value_per_channel) {
  // (a) One value per channel has no unbiased variance: refused, and nothing has moved.
  Tensor mean = zeros({2}), var = ones({2}), w = ones({2}), b = zeros({2});
  Tensor one = from_vector<float>({3, 5}, {1, 1, 1, 2});
  expect_error("1 values per channel in training, expected at least 2",
               [&] { batch_norm(one, w, b, mean, var, true); });
  EXPECT_EQ(mean.to_vector<float>(), (std::vector<float>{0, 0}));
  EXPECT_EQ(var.to_vector<float>(), (std::vector<float>{1, 1}));

  // In evaluation it works.
  std::vector<float> y = batch_norm(one, w, b, mean, var, false).to_vector<float>();
  EXPECT_FLOAT_EQ(y[0], 3 / std::sqrt(1.00001f));
  EXPECT_FLOAT_EQ(y[1], 5 / std::sqrt(1.00001f));

  // (b) The biased variance normalises, the unbiased one is kept.
  mean = zeros({1}), var = ones({1});
  y = batch_norm(from_vector<float>({1, 3}, {2, 1}), ones({1}), zeros({1}), mean, var, true, 0.1, 1e-5)
          .to_vector<float>();
  EXPECT_NEAR(y[0], -0.999995, 1e-7);
  EXPECT_NEAR(y[1], 0.999995, 1e-7);
  EXPECT_FLOAT_EQ(mean.item<float>(), 0.2f);
  EXPECT_FLOAT_EQ(var.item<float>(), 1.1f);
}

}  // namespace
}  // namespace lockstep
