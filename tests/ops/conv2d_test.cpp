#include "lockstep/ops/conv2d.h"

#include <gtest/gtest.h>

#include "lockstep/runtime/allocator.h"
#include "lockstep/runtime/autograd.h"
#include "tests/ops/conv2d_reference.h"
#include "tests/ops/op_harness.h"

namespace lockstep {
namespace {

using test::check_op;

test::OpRow row(const std::string& name, const Shape& x, const Shape& w, const Conv2dOptions& options,
                bool relu = false) {
  return {
      .name = name,
      .inputs = {{.shape = x}, {.shape = w}, {.shape = {w[0]}}},
      .op =
          [=](const Tensors& t) {
            return relu ? conv2d_relu(t[0], t[1], t[2], options) : conv2d(t[0], t[1], t[2], options);
          },
      .reference = [=](const Tensors& t) { return test::conv2d_reference(t[0], t[1], t[2], options, relu); },
      .length = std::max(w[1] * w[2] * w[3] + 1, x[0] * x[1] * x[2])};
}

TEST(OpConv2d, Plain) {
  test::OpRow conv = row("conv2d", {3, 5, 6, 2}, {4, 3, 2, 2}, {});
  const Tensor x = zeros({1, 4, 4, 4}), w = zeros({6, 3, 3, 4});
  conv.bad = {{"expected [N, H, W, C]",
               [=] {
                 conv2d(zeros({4, 4, 4}), w);
               }},
              {"expected [K, R, S, C / groups]",
               [=] {
                 conv2d(x, zeros({3, 3, 4}));
               }},
              {"has 3 channels, expected 4",
               [=] {
                 conv2d(x, zeros({6, 3, 3, 3}));
               }},
              {"has 4 channels, expected 2", [=] { conv2d(x, w, {}, {.groups = 2}); }},
              {"groups 3 do not divide 4 input channels", [=] { conv2d(x, w, {}, {.groups = 3}); }},
              {"groups 4 do not divide 4 input channels and 6 filters",
               [=] {
                 conv2d(x, zeros({6, 3, 3, 1}), {}, {.groups = 4});
               }},
              {"groups 0", [=] { conv2d(x, w, {}, {.groups = 0}); }},
              {"larger than the padded input of 4",
               [=] {
                 conv2d(x, zeros({1, 5, 1, 4}));
               }},
              {"larger than the padded input of 4",
               [=] {
                 conv2d(x, w, {}, {.dilation = {1, 2}});
               }},
              {"padding -1 and 0",
               [=] {
                 conv2d(x, w, {}, {.padding = {-1, 0, 0, 0}});
               }},
              {"padding 0 and -2",
               [=] {
                 conv2d(x, w, {}, {.padding = {0, 0, 0, -2}});
               }},
              {"stride 0",
               [=] {
                 conv2d(x, w, {}, {.stride = {0, 1}});
               }},
              {"dilation 0",
               [=] {
                 conv2d(x, w, {}, {.dilation = {1, 0}});
               }},
              {"at least 1",
               [=] {
                 conv2d(x, zeros({0, 3, 3, 4}));
               }},
              {"at least 1",
               [=] {
                 conv2d(x, zeros({6, 0, 3, 4}));
               }},
              {"expected [6]", [=] { conv2d(x, w, zeros({4})); }},
              {"one dtype",
               [=] {
                 conv2d(x, zeros({6, 3, 3, 4}, DType::float64));
               }},
              {"one dtype", [=] { conv2d(x, w, zeros({6}, DType::bfloat16)); }},
              {"floating-point",
               [=] {
                 conv2d(zeros({1, 4, 4, 4}, DType::uint8), w);
               }},
              {"device",
               [=] {
                 conv2d(x, zeros({6, 3, 3, 4}, DType::float32, "meta"));
               }},
              {"[same_padding] kernel 0", [] {
                 same_padding({0, 3});
               }}};
  conv.empty_shapes = {{0, 5, 6, 2}, {4, 3, 2, 2}, {4}};
  check_op(conv);
}

TEST(OpConv2d, Geometries) {
  check_op(row("stride 2, remainder", {2, 6, 7, 3}, {4, 3, 3, 3}, {.stride = {2, 3}}));
  check_op(row("asymmetric padding", {2, 4, 3, 3}, {4, 3, 2, 3}, {.padding = {0, 2, 1, 3}}));
  check_op(row("padding beyond the kernel", {1, 2, 2, 2}, {3, 2, 2, 2}, {.padding = {3, 3, 4, 2}}));
  check_op(row("dilation", {2, 7, 9, 2}, {3, 3, 3, 2}, {.padding = {1, 2, 0, 3}, .dilation = {2, 3}}));
  check_op(row("stride and dilation", {1, 9, 8, 2}, {2, 2, 3, 2},
               {.stride = {2, 2}, .padding = {1, 0, 2, 1}, .dilation = {3, 2}}));
  check_op(row("1x1", {2, 3, 4, 5}, {6, 1, 1, 5}, {}));
  check_op(row("1x1, stride 2", {2, 5, 4, 3}, {6, 1, 1, 3}, {.stride = {2, 2}}));
  check_op(row("kernel as large as the image", {3, 4, 5, 2}, {3, 4, 5, 2}, {}));
  check_op(row("same, even kernel", {2, 5, 6, 3}, {4, 4, 2, 3}, same_padding({4, 2})));
  check_op(row("same, dilated", {2, 7, 6, 2}, {3, 3, 2, 2}, same_padding({3, 2}, {2, 3})));
  check_op(row("one channel", {3, 8, 8, 1}, {6, 5, 5, 1}, {.padding = {2, 2, 2, 2}}));
  check_op(row("17 channels", {3, 6, 6, 17}, {19, 3, 3, 17}, {.padding = {1, 1, 1, 1}}));
}

TEST(OpConv2d, Groups) {
  check_op(row("two groups", {2, 5, 5, 6}, {4, 3, 2, 3}, {.padding = {1, 0, 0, 1}, .groups = 2}));
  check_op(
      row("depthwise", {2, 5, 5, 4}, {4, 3, 3, 1}, {.stride = {2, 1}, .padding = {1, 1, 1, 1}, .groups = 4}));
  check_op(
      row("depthwise, two filters a channel", {2, 4, 5, 3}, {6, 3, 3, 1}, {.dilation = {1, 2}, .groups = 3}));
  check_op(row("grouped 1x1", {2, 3, 3, 8}, {8, 1, 1, 2}, {.groups = 4}));
}

TEST(OpConv2d, BatchesThatDoNotDivideIntoChunks) {
  for (int64_t batch : {1, 15, 17, 33}) {
    test::OpRow conv =
        row(concat("batch of ", batch), {batch, 5, 5, 9}, {10, 3, 3, 9}, {.padding = {1, 1, 1, 1}});
    conv.gradcheck = false;
    check_op(conv);
  }
}

// Smooth only away from 0: inputs and biases that keep each result clear of it, on both sides.
TEST(OpConv2d, Relu) {
  test::OpRow conv = row("conv2d_relu", {2, 4, 4, 2}, {3, 2, 2, 2}, {}, true);
  conv.inputs[2].values = {2.5, -2.5, 3};
  conv.inputs[0].low = conv.inputs[1].low = -0.4;
  conv.inputs[0].high = conv.inputs[1].high = 0.4;
  check_op(conv);
}

TEST(OpConv2d, ReluKeepsNaN) {
  Tensor x = full({1, 8, 8, 16}, NAN);
  for (float v : conv2d_relu(x, ones({16, 3, 3, 16})).to_vector<float>()) EXPECT_TRUE(std::isnan(v));
}

TEST(OpConv2d, WithoutBias) {
  const Conv2dOptions options = same_padding({3, 3});
  check_op({.name = "conv2d without bias",
            .inputs = {{.shape = {2, 4, 4, 3}}, {.shape = {5, 3, 3, 3}}},
            .op = [=](const Tensors& t) { return conv2d(t[0], t[1], {}, options); },
            .reference = [=](const Tensors& t) { return test::conv2d_reference(t[0], t[1], {}, options); },
            .length = 32});
}

TEST(OpConv2d, FrozenInputsAndParametersGetNoGradient) {
  for (int wanted = 0; wanted < 8; wanted++) {
    test::OpRow conv = row(concat("gradients wanted ", wanted), {2, 4, 4, 2}, {3, 2, 2, 2}, {});
    for (int i = 0; i < 3; i++) conv.inputs[size_t(i)].differentiable = wanted >> i & 1;
    check_op(conv);
  }
}

// Nothing of the size of the output is computed before the check; C37 (c) asks for it.
TEST(OpConv2d, AnErrorAllocatesNothing) {
  const Tensor x = zeros({1, 3, 3, 1}), w = zeros({1, 5, 5, 1});
  const int64_t before = memory_stats("cpu").allocations;
  test::expect_error("kernel of 5 along the height (dilation included) is larger than the padded input of 3",
                     [&] { conv2d(x, w); });
  EXPECT_EQ(memory_stats("cpu").allocations, before);
}

TEST(OpConv2d, TheBiasGradientOfManyPixelsIsExact) {
  Tensor bias = zeros({6}).set_requires_grad();
  Tensor y = conv2d(zeros({64, 128, 128, 1}), zeros({6, 1, 1, 1}).set_requires_grad(), bias);
  y.backward(full(y.shape(), 0.1));
  for (float v : bias.grad().to_vector<float>()) EXPECT_FLOAT_EQ(v, float(double(0.1f) * 64 * 128 * 128));
}

}  // namespace
}  // namespace lockstep
