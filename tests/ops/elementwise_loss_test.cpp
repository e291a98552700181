#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/ops/bce_with_logits.h"
#include "lockstep/ops/mse_loss.h"
#include "lockstep/runtime/autograd.h"
#include "tests/ops/op_harness.h"

namespace lockstep {
namespace {

Tensor reduce(const std::vector<double>& losses, const Shape& shape, Reduction reduction) {
  if (reduction == Reduction::none) return from_vector(losses, shape);
  double sum = 0;
  for (double loss : losses) sum += loss;
  return scalar(reduction == Reduction::mean && !losses.empty() ? sum / double(losses.size()) : sum);
}

test::OpRow mse_row(Reduction reduction) {
  return {.name = "mse_loss",
          .inputs = {{.shape = {3, 7}, .low = -2, .high = 2}, {.shape = {3, 7}, .low = -2, .high = 2}},
          .op = [=](const Tensors& x) { return mse_loss(x[0], x[1], reduction); },
          .reference =
              [=](const Tensors& x) {
                std::vector<double> losses = x[0].to_vector<double>(), y = x[1].to_vector<double>();
                for (size_t i = 0; i < losses.size(); i++)
                  losses[i] = (losses[i] - y[i]) * (losses[i] - y[i]);
                return reduce(losses, x[0].shape(), reduction);
              },
          .length = 21,
          .bad = {{"shapes [2, 3] and [2, 1]",
                   [] {
                     mse_loss(ones({2, 3}), ones({2, 1}));
                   }},
                  {"dtypes float32 and float64", [] { mse_loss(ones({2}), ones({2}, DType::float64)); }},
                  {"dtypes int64 and int64", [] { mse_loss(arange(2), arange(2)); }},
                  {"different devices", [] { mse_loss(ones({2}), ones({2}, DType::float32, "meta")); }}},
          .empty_shapes = {{0, 7}, {0, 7}}};
}

TEST(MseLoss, Mean) { test::check_op(mse_row(Reduction::mean)); }
TEST(MseLoss, Sum) { test::check_op(mse_row(Reduction::sum)); }
TEST(MseLoss, None) { test::check_op(mse_row(Reduction::none)); }

test::OpRow bce_row(Reduction reduction, bool weighted) {
  // weight per row, pos_weight per column
  auto options = [=](const Tensor& x) {
    BceOptions o{.reduction = reduction};
    if (!weighted) return o;
    o.weight = from_vector<double>({1, 0.5, 2}, {3, 1}).to(x.dtype());
    o.pos_weight = from_vector<double>({1, 2, 0.5, 3}).to(x.dtype());
    if (x.device().is_meta())
      o = {empty({3, 1}, x.dtype(), "meta"), empty({4}, x.dtype(), "meta"), reduction};
    return o;
  };
  Tensor x = ones({2, 3});
  return {.name = "bce_with_logits",
          .inputs = {{.shape = {3, 4}, .low = -4, .high = 4}, {.shape = {3, 4}, .low = 0, .high = 1}},
          .op = [=](const Tensors& x) { return bce_with_logits(x[0], x[1], options(x[0])); },
          .reference =
              [=](const Tensors& x) {
                const double weights[] = {1, 0.5, 2}, pos_weights[] = {1, 2, 0.5, 3};
                std::vector<double> losses = x[0].to_vector<double>(), target = x[1].to_vector<double>();
                for (size_t i = 0; i < losses.size(); i++) {
                  const double p = 1 / (1 + std::exp(-losses[i])), w = weighted ? weights[i / 4] : 1;
                  const double pos = weighted ? pos_weights[i % 4] : 1;
                  losses[i] = -w * (pos * target[i] * std::log(p) + (1 - target[i]) * std::log(1 - p));
                }
                return reduce(losses, x[0].shape(), reduction);
              },
          .length = 12,
          .bad = {{"logits of shape [2, 3] and targets of shape [3]", [=] { bce_with_logits(x, ones({3})); }},
                  {"dtypes float32 and float64", [=] { bce_with_logits(x, x.to(DType::float64)); }},
                  {"weight of shape [4, 2, 3]",
                   [=] {
                     bce_with_logits(x, x, {.weight = ones({4, 2, 3})});
                   }},
                  {"do not broadcast", [=] { bce_with_logits(x, x, {.weight = ones({2})}); }},
                  {"pos_weight of dtype float64",
                   [=] { bce_with_logits(x, x, {.pos_weight = ones({3}, DType::float64)}); }},
                  {"pos_weight requires a gradient",
                   [=] { bce_with_logits(x, x, {.pos_weight = ones({3}).set_requires_grad()}); }}},
          .empty_shapes = weighted ? std::vector<Shape>{} : std::vector<Shape>{{0, 4}, {0, 4}}};
}

TEST(BceWithLogits, Mean) { test::check_op(bce_row(Reduction::mean, false)); }
TEST(BceWithLogits, WeightedSum) { test::check_op(bce_row(Reduction::sum, true)); }
TEST(BceWithLogits, WeightedNone) { test::check_op(bce_row(Reduction::none, true)); }

const std::vector<double> kX{0.5, -1.2, 2.0, 0.3, 1.5, 0.1, -0.7, 0.9, -2.0, 0.4, 0.8, -0.1};
const std::vector<double> kTarget{0, 1, 0.3, 1, 1, 0, 0.5, 0, 0.9, 0, 1, 0.2};

// Printed by PyTorch 2.13 in float64.
TEST(BceWithLogits, ValuesOfPyTorch) {
  Tensor x = from_vector(kX, {3, 4}).set_requires_grad(),
         target = from_vector(kTarget, {3, 4}).set_requires_grad();
  Tensor loss = bce_with_logits(x, target,
                                {.weight = from_vector<double>({1, 0.5, 2}, {3, 1}),
                                 .pos_weight = from_vector<double>({1, 2, 0.5, 3})});
  EXPECT_NEAR(loss.item(), 1.3649225814511796, 1e-14);
  loss.backward();
  EXPECT_NEAR(x.grad().to_vector<double>()[3], -0.10638937079708526, 1e-14);
  EXPECT_NEAR(x.grad().to_vector<double>()[8], -0.13013284632964708, 1e-14);
  EXPECT_NEAR(target.grad().to_vector<double>()[1], 0.2219402056115026, 1e-14);
}

TEST(MseLoss, ValuesOfPyTorch) {
  Tensor x = from_vector(kX, {3, 4}).set_requires_grad();
  Tensor loss = mse_loss(x, from_vector(kTarget, {3, 4}));
  EXPECT_NEAR(loss.item(), 1.64, 1e-14);
  loss.backward();
  EXPECT_NEAR(x.grad().to_vector<double>()[1], -0.3666666666666667, 1e-14);
}

TEST(BceWithLogits, ExtremeLogits) {
  for (DType dtype : {DType::float64, DType::float32}) {
    Tensor x = from_vector<double>({1000, 1000, -1000, -1000, 30, -30}).to(dtype).set_requires_grad();
    Tensor loss =
        bce_with_logits(x, from_vector<double>({1, 0, 1, 0, 1, 0}).to(dtype), {.reduction = Reduction::none});
    const std::vector<double> y = loss.to_vector<double>();
    EXPECT_EQ(std::vector<double>(y.begin(), y.begin() + 4), (std::vector<double>{0, 1000, 1000, 0}));
    EXPECT_NEAR(y[4] / std::exp(-30.0), 1, 1e-6);  // not rounded away against 1
    EXPECT_NEAR(y[5] / std::exp(-30.0), 1, 1e-6);
    loss.backward(ones({6}, dtype));
    const std::vector<double> dx = x.grad().to_vector<double>();
    EXPECT_EQ(std::vector<double>(dx.begin(), dx.begin() + 4), (std::vector<double>{0, 1, -1, 0}));
  }
}

// The sum of 16-bit losses is not itself kept in 16 bits: it may exceed 65504 although the mean does not.
TEST(MseLoss, MeanOfHalfPrecisionDoesNotOverflow) {
  Tensor x = full({1000}, 10, DType::float16);
  EXPECT_EQ(mse_loss(x, zeros_like(x)).item(), 100);
}

TEST(MseLoss, NoWorkForInputsWithoutGradient) {
  Tensor x = test::drawn(1, {4}).set_requires_grad(), y = test::drawn(2, {4});
  Tensor loss = mse_loss(x, y);
  EXPECT_EQ(grad({&loss, 1}, {&x, 1})[0].shape(), x.shape());
  EXPECT_FALSE(y.grad().defined());
  EXPECT_FALSE(mse_loss(y, y).requires_grad());
}

}  // namespace
}  // namespace lockstep
