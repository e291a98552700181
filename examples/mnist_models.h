// The two networks of examples/mnist.cpp. Images are [N, 28, 28, 1], results [N, 10].
#pragma once

#include <memory>
#include <string>

#include "lockstep/ops/unary.h"
#include "lockstep/training/layers.h"

namespace lockstep {

// LeNet-5 (LeCun et al. 1998) with ReLU and max pooling: 61,706 parameters.
struct LeNet : Module {
  Conv2d conv1{1, 6, {.kernel = 5, .padding = 2, .relu = true}}, conv2{6, 16, {.kernel = 5, .relu = true}};
  Linear fc1{5 * 5 * 16, 120}, fc2{120, 84}, fc3{84, 10};
  MaxPool2d pool{2};

  LeNet() {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("fc1", fc1);
    register_module("fc2", fc2);
    register_module("fc3", fc3);
  }
  Tensor forward(const Tensor& images) override {
    Tensor x = pool(conv1(images));  // [N, 14, 14, 6]
    x = pool(conv2(x));              // [N, 5, 5, 16]
    x = relu(fc1(x.flatten(1)));
    return fc3(relu(fc2(x)));
  }
};

// Two convolutions, two linear layers, dropout: 1,199,882 parameters. PyTorch's MNIST example has the same.
struct MnistCnn : Module {
  Conv2d conv1{1, 32, {.kernel = 3, .relu = true}}, conv2{32, 64, {.kernel = 3, .relu = true}};
  Linear fc1{12 * 12 * 64, 128}, fc2{128, 10};
  MaxPool2d pool{2};
  Dropout dropout1, dropout2;

  explicit MnistCnn(double dropout1_p = 0.25, double dropout2_p = 0.5)
      : dropout1(dropout1_p), dropout2(dropout2_p) {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("dropout1", dropout1);
    register_module("fc1", fc1);
    register_module("dropout2", dropout2);
    register_module("fc2", fc2);
  }
  Tensor forward(const Tensor& images) override {
    Tensor x = conv2(conv1(images));   // [N, 24, 24, 64]
    x = dropout1(pool(x)).flatten(1);  // [N, 9216]
    return fc2(dropout2(relu(fc1(x))));
  }
};

inline std::unique_ptr<Module> make_mnist_model(const std::string& name) {
  if (name == "lenet") return std::make_unique<LeNet>();
  if (name == "cnn") return std::make_unique<MnistCnn>();
  throw_error("[mnist] model '" + name + "', expected lenet or cnn");
}

}  // namespace lockstep
