#include "lockstep/training/layers.h"

#include <gtest/gtest.h>

#include <sstream>

#include "lockstep/ops/conv2d.h"
#include "lockstep/ops/linear.h"
#include "lockstep/ops/mse_loss.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/random.h"
#include "lockstep/training/init.h"
#include "lockstep/training/optimizer.h"

namespace lockstep {
namespace {

std::string printed(const Module& module) {
  std::ostringstream out;
  out << module;
  return out.str();
}

TEST(Layers, linear_has_the_parameters_of_pytorch) {
  Linear layer(200, 30);
  EXPECT_EQ(layer.weight.shape(), (Shape{30, 200}));
  EXPECT_EQ(layer.bias.shape(), (Shape{30}));
  double bound = 1 / std::sqrt(200.0), largest = 0;
  for (float w : layer.weight.to_vector<float>()) largest = std::max(largest, std::abs(double(w)));
  EXPECT_LE(largest, bound * (1 + 1e-6));
  EXPECT_GT(largest, bound * 0.98);
  Tensor x = randn({5, 200});
  EXPECT_EQ(layer(x).to_vector<float>(), linear(x, layer.weight, layer.bias).to_vector<float>());
  EXPECT_EQ(printed(layer), "Linear(200, 30)");

  Linear without(4, 3, false);
  EXPECT_EQ(without.named_parameters().size(), 1u);
  EXPECT_EQ(without(zeros({2, 4})).shape(), (Shape{2, 3}));
  EXPECT_EQ(printed(without), "Linear(4, 3, no bias)");
}

TEST(Layers, conv2d_passes_its_configuration_on) {
  Conv2d layer(
      4, 6, {.kernel = {3, 5}, .stride = {2, 1}, .padding = {0, 1, 2, 3}, .dilation = {1, 2}, .groups = 2});
  EXPECT_EQ(layer.weight.shape(), (Shape{6, 3, 5, 2}));
  Tensor x = randn({2, 9, 12, 4});
  Conv2dOptions options{.stride = {2, 1}, .padding = {0, 1, 2, 3}, .dilation = {1, 2}, .groups = 2};
  Tensor y = layer(x);
  EXPECT_EQ(y.to_vector<float>(), conv2d(x, layer.weight, layer.bias, options).to_vector<float>());
  EXPECT_EQ(printed(layer), "Conv2d(4, 6, kernel 3x5, stride 2x1, padding 0 1 2 3, dilation 1x2, groups 2)");

  Conv2d fused(1, 2, {.kernel = 3, .padding = 1, .bias = false, .relu = true});
  EXPECT_EQ(fused.named_parameters().size(), 1u);
  double least = 1;
  Tensor image = randn({1, 8, 8, 1});
  for (float value : fused(image).to_vector<float>()) least = std::min(least, double(value));
  EXPECT_EQ(least, 0);
  EXPECT_EQ(printed(fused), "Conv2d(1, 2, kernel 3, padding 1, no bias, relu)");
}

TEST(Layers, same_padding_divides_the_size_by_the_stride) {
  for (int64_t kernel : {1, 2, 3, 4, 5})
    for (int64_t stride : {1, 2, 3})
      for (int64_t dilation : {1, 2}) {
        Conv2d layer(1, 1, {.kernel = kernel, .stride = stride, .dilation = dilation, .same = true});
        EXPECT_EQ(layer(zeros({1, 10, 11, 1})).shape(),
                  (Shape{1, (10 + stride - 1) / stride, (11 + stride - 1) / stride, 1}))
            << kernel << " " << stride << " " << dilation;
      }
  // An even kernel has its odd padding at the bottom and the right: the last output sees only the last input.
  Conv2d even(1, 1, {.kernel = 2, .bias = false, .same = true});
  init::constant(even.weight, 1);
  EXPECT_EQ(even(from_vector<float>({1, 2, 3, 4}, {1, 2, 2, 1})).to_vector<float>(),
            (std::vector<float>{10, 6, 7, 4}));
}

TEST(Layers, pools_embed_and_flatten) {
  Tensor x = randn({2, 8, 8, 3});
  EXPECT_EQ(MaxPool2d(2)(x).shape(), (Shape{2, 4, 4, 3}));
  EXPECT_EQ(MaxPool2d(3, 1)(x).shape(), (Shape{2, 6, 6, 3}));
  EXPECT_EQ(MaxPool2d({.kernel = {3, 3}, .stride = {2, 2}, .padding = 1})(x).shape(), (Shape{2, 4, 4, 3}));
  EXPECT_EQ(AvgPool2d(4)(x).shape(), (Shape{2, 2, 2, 3}));
  EXPECT_EQ(AdaptiveAvgPool2d(3)(x).shape(), (Shape{2, 3, 3, 3}));
  EXPECT_EQ(AdaptiveAvgPool2d({1, 2})(x).shape(), (Shape{2, 1, 2, 3}));
  EXPECT_EQ(GlobalAvgPool2d()(x).shape(), (Shape{2, 3}));
  EXPECT_EQ(Flatten()(x).shape(), (Shape{2, 192}));
  Softmax softmax;
  double sum = 0;
  for (double p : softmax(randn({1, 9})).to_vector<double>()) sum += p;
  EXPECT_NEAR(sum, 1, 1e-6);
  EXPECT_EQ(printed(MaxPool2d(3, 2)), "MaxPool2d(kernel 3, stride 2)");

  Embedding embedding(10, 4, 3);
  Tensor y = embedding(from_vector<int64_t>({3, 7}));
  EXPECT_EQ(y.shape(), (Shape{2, 4}));
  auto values = y.to_vector<float>();
  EXPECT_EQ(std::vector<float>(values.begin(), values.begin() + 4), std::vector<float>(4, 0));
  EXPECT_NE(values[4], 0);
}

TEST(Layers, dropout_acts_only_in_training) {
  Dropout layer(0.5);
  Tensor x = ones({1000});
  layer.eval();
  EXPECT_TRUE(layer(x).same_as(x));
  layer.train();
  double zeros = 0;
  for (float value : layer(x).to_vector<float>()) {
    EXPECT_TRUE(value == 0 || value == 2);
    zeros += value == 0;
  }
  EXPECT_NEAR(zeros, 500, 100);
}

TEST(Layers, refuse_bad_arguments) {
  EXPECT_THROW(Linear(0, 3), Error);
  EXPECT_THROW(Linear(3, -1), Error);
  EXPECT_THROW(Conv2d(3, 4, {.kernel = 0}), Error);
  EXPECT_THROW(Conv2d(3, 4, {.kernel = 3, .stride = 0}), Error);
  EXPECT_THROW(Conv2d(3, 4, {.kernel = 3, .padding = -1}), Error);
  EXPECT_THROW(Conv2d(3, 4, {.kernel = 3, .dilation = 0}), Error);
  EXPECT_THROW(Conv2d(3, 4, {.kernel = 3, .groups = 2}), Error);
  EXPECT_THROW(Conv2d(3, 4, {.kernel = 3, .padding = 1, .same = true}), Error);
  EXPECT_THROW(Dropout(1.5), Error);
  EXPECT_THROW(Embedding(0, 4), Error);
  EXPECT_THROW(Embedding(4, 4, 4), Error);
}

TEST(Sequential, names_runs_and_owns_its_modules) {
  Sequential net(std::make_shared<Linear>(3, 4), std::make_shared<Dropout>(0.1));
  net.add("head", std::make_shared<Linear>(4, 2)).add(std::make_shared<Softmax>());
  EXPECT_EQ(net.size(), 4u);
  std::vector<std::string> names;
  for (auto& [name, tensor] : net.state_dict()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"0.weight", "0.bias", "head.weight", "head.bias"}));
  EXPECT_EQ(net(randn({5, 3})).shape(), (Shape{5, 2}));
  net.eval();
  EXPECT_FALSE(net[1].is_training());
  net.add(std::make_shared<Dropout>());
  EXPECT_FALSE(net[4].is_training());
  EXPECT_THROW(net.add(nullptr), Error);
  EXPECT_THROW(net.add("head", std::make_shared<Softmax>()), Error);
  Tensor x = randn({1, 3});
  EXPECT_TRUE(Sequential()(x).same_as(x));
  EXPECT_EQ(printed(net).substr(0, 31), "Sequential {\n  0: Linear(3, 4)\n");
}

// LeNet-5's convolutions and classifier: the figures are PyTorch's.
TEST(Layers, summary_of_a_network) {
  Sequential net(std::make_shared<Conv2d>(1, 6, Conv2dConfig{.kernel = 5, .padding = 2, .relu = true}),
                 std::make_shared<MaxPool2d>(2),
                 std::make_shared<Conv2d>(6, 16, Conv2dConfig{.kernel = 5, .relu = true}),
                 std::make_shared<MaxPool2d>(2), std::make_shared<Flatten>(),
                 std::make_shared<Linear>(400, 120), std::make_shared<Dropout>(),
                 std::make_shared<Linear>(120, 84), std::make_shared<Linear>(84, 10));
  RandomState before = generator().state();
  EXPECT_EQ(
      net.summary({64, 28, 28, 1}),
      "layer  type       output            parameters       bytes\n"
      "0      Conv2d     [64, 28, 28, 6]          156       624 B\n"
      "1      MaxPool2d  [64, 14, 14, 6]            -           -\n"
      "2      Conv2d     [64, 10, 10, 16]       2,416    9.44 KiB\n"
      "3      MaxPool2d  [64, 5, 5, 16]             -           -\n"
      "4      Flatten    [64, 400]                  -           -\n"
      "5      Linear     [64, 120]             48,120  187.97 KiB\n"
      "6      Dropout    [64, 120]                  -           -\n"
      "7      Linear     [64, 84]              10,164   39.70 KiB\n"
      "8      Linear     [64, 10]                 850    3.32 KiB\n"
      "Sequential: 61,706 parameters (61,706 trainable), 241.04 KiB; buffers 0 B; input [64, 28, 28, 1]\n");
  EXPECT_EQ(generator().state(), before);
}

TEST(Layers, can_be_made_on_meta_and_filled_later) {
  RandomState before = generator().state();
  std::unique_ptr<Linear> layer;
  {
    ParameterDeviceGuard guard("meta");
    layer = std::make_unique<Linear>(1 << 20, 1 << 20);
  }
  EXPECT_EQ(generator().state(), before);
  EXPECT_EQ(layer->summary({1, 1 << 20}).substr(0, 5), "layer");
}

// Two layers fit a plane exactly; every optimizer must get near.
TEST(Training, optimizers_fit_a_plane) {
  Generator generator(11);
  GeneratorGuard guard(generator);
  Tensor x = randn({64, 3}),
         target = linear(x, from_vector<float>({1, -2, 0.5}, {1, 3}), from_vector<float>({0.25}));
  auto fit = [&](auto make) {
    Sequential net(std::make_shared<Linear>(3, 8), std::make_shared<Linear>(8, 1));
    auto optimizer = make(net.named_parameters());
    double loss_value = 0;
    for (int step = 0; step < 200; step++) {
      net.zero_grad();
      Tensor loss = mse_loss(net(x), target);
      loss.backward();
      optimizer->step();
      loss_value = loss.item();
    }
    return loss_value;
  };
  EXPECT_LT(fit([](const StateDict& p) {
              return std::make_unique<SGD>(p, SGDOptions{.lr = 0.05, .momentum = 0.9});
            }),
            1e-4);
  EXPECT_LT(fit([](const StateDict& p) { return std::make_unique<Adam>(p, AdamOptions{.lr = 0.03}); }), 1e-3);
  EXPECT_LT(fit([](const StateDict& p) { return std::make_unique<AdamW>(p, AdamWOptions{.lr = 0.03}); }),
            1e-2);
}

}  // namespace
}  // namespace lockstep
