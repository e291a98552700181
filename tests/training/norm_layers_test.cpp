#include "lockstep/training/norm_layers.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/random.h"

namespace lockstep {
namespace {

std::vector<std::string> names(const StateDict& state) {
  std::vector<std::string> all;
  for (auto& [name, tensor] : state) all.push_back(name);
  return all;
}

TEST(NormLayers, batch_norm_keeps_the_state_of_pytorch) {
  BatchNorm1d layer(2, {.momentum = 0.5});
  EXPECT_EQ(names(layer.state_dict()), (std::vector<std::string>{"weight", "bias", "running_mean",
                                                                 "running_var", "num_batches_tracked"}));
  Tensor x = from_vector<float>({0, 10, 2, 14, 4, 18}, {3, 2});  // means 2, 14; unbiased variances 4, 16
  for (int step = 0; step < 2; step++) layer(x);
  EXPECT_EQ(layer.running_mean.to_vector<float>(), (std::vector<float>{1.5f, 10.5f}));
  EXPECT_EQ(layer.running_var.to_vector<float>(), (std::vector<float>{3.25f, 12.25f}));
  EXPECT_EQ(layer.num_batches_tracked.item<int64_t>(), 2);

  layer.eval();
  auto y = layer(x).to_vector<double>();
  EXPECT_NEAR(y[0], (0 - 1.5) / std::sqrt(3.25 + 1e-5), 1e-6);
  EXPECT_NEAR(y[1], (10 - 10.5) / std::sqrt(12.25 + 1e-5), 1e-6);
  EXPECT_EQ(layer.num_batches_tracked.item<int64_t>(), 2);
}

TEST(NormLayers, a_batch_that_is_refused_is_not_counted) {
  BatchNorm2d layer(3);
  EXPECT_THROW(layer(zeros({1, 1, 1, 3})), Error);  // one value per channel
  EXPECT_THROW(layer(zeros({4, 3})), Error);
  EXPECT_EQ(layer.num_batches_tracked.item<int64_t>(), 0);
}

TEST(NormLayers, batch_norm_fuses_relu_and_residual) {
  BatchNorm2d layer(3, {.relu = true});
  Tensor x = randn({2, 4, 4, 3});
  auto alone = layer(x).to_vector<float>(), shifted = layer.forward(x, ones({2, 4, 4, 3})).to_vector<float>();
  int zero = 0;
  for (size_t i = 0; i < alone.size(); i++) {
    zero += alone[i] == 0;
    EXPECT_GE(alone[i], 0);
    if (alone[i] > 0) {
      EXPECT_NEAR(shifted[i], alone[i] + 1, 1e-5);
    }
  }
  EXPECT_GT(zero, 20);
  EXPECT_EQ(layer.describe(), "BatchNorm2d(3, relu)");
}

TEST(NormLayers, layer_norm_normalises_rows) {
  LayerNorm layer({2, 2}), plain(4, 1e-5, false);
  EXPECT_EQ(names(layer.state_dict()), (std::vector<std::string>{"weight", "bias"}));
  EXPECT_TRUE(plain.parameters().empty());
  Tensor x = randn({5, 2, 2});
  auto y = layer(x).to_vector<double>();
  EXPECT_NEAR(y[0] + y[1] + y[2] + y[3], 0, 1e-5);
  EXPECT_NEAR(y[0] * y[0] + y[1] * y[1] + y[2] * y[2] + y[3] * y[3], 4, 1e-2);
  EXPECT_EQ(plain(x.reshape({5, 4})).to_vector<float>(), layer(x).to_vector<float>());
  EXPECT_EQ(layer.describe(), "LayerNorm([2, 2])");
}

TEST(NormLayers, summary_in_training_mode_moves_no_statistics) {
  BatchNorm2d layer(3);
  EXPECT_NE(layer.summary({2, 4, 4, 3}).find("6 parameters"), std::string::npos);
  EXPECT_EQ(layer.num_batches_tracked.item<int64_t>(), 0);
  EXPECT_TRUE(layer.is_training());
}

TEST(NormLayers, refuse_bad_arguments) {
  EXPECT_THROW(BatchNorm2d(0), Error);
  EXPECT_THROW(BatchNorm2d(0, {.affine = false}), Error);
  EXPECT_THROW(BatchNorm2d(3, {.eps = -1}), Error);
  EXPECT_THROW(BatchNorm2d(3, {.momentum = 2}), Error);
  EXPECT_THROW(LayerNorm(Shape{}), Error);
  EXPECT_THROW(LayerNorm(0), Error);
}

}  // namespace
}  // namespace lockstep
