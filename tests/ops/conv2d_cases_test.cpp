// Convolution's cases with exact values, by every plan that supports them.
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/ops/conv2d.h"
#include "lockstep/ops/conv2d_plans.h"
#include "lockstep/ops/linear.h"
#include "lockstep/runtime/allocator.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/gradcheck.h"
#include "tests/ops/op_harness.h"

namespace lockstep {
namespace {

using cpu::ConvDirection;
using cpu::ConvGeometry;
using cpu::ConvPlan;
using Values = std::vector<double>;

constexpr DType kDtypes[] = {DType::float64, DType::float32, DType::float16, DType::bfloat16};

struct Results {
  Values y, dx, dw;
};

// Through autograd, dy all ones.
Results run(const Values& x, const Shape& x_shape, const Values& w, const Shape& w_shape,
            const Conv2dOptions& options, DType dtype) {
  Tensor xt = from_vector(x, x_shape).to(dtype).set_requires_grad(),
         wt = from_vector(w, w_shape).to(dtype).set_requires_grad();
  Tensor y = conv2d(xt, wt, {}, options);
  y.backward(ones(y.shape(), dtype));
  EXPECT_EQ(xt.grad().shape(), x_shape);
  return {y.to_vector<double>(), xt.grad().to_vector<double>(), wt.grad().to_vector<double>()};
}

// The plans themselves, in float.
void expect_by_every_plan(const ConvGeometry& g, const Values& x, const Values& w, const Results& want) {
  const std::vector<float> xf(x.begin(), x.end()), wf(w.begin(), w.end()), dy(want.y.size(), 1.0f);
  for (ConvPlan plan : {ConvPlan::im2col, ConvPlan::onednn, ConvPlan::direct, ConvPlan::direct_avx512}) {
    SCOPED_TRACE(concat("plan ", int(plan)));
    std::vector<float> y(want.y.size()), dx(x.size()), dw(w.size());
    if (plan_supports(plan, ConvDirection::forward, g)) {
      conv_forward<float>(plan, g, xf.data(), wf.data(), nullptr, false, y.data());
      EXPECT_EQ(Values(y.begin(), y.end()), want.y);
    }
    if (plan_supports(plan, ConvDirection::backward_input, g)) {
      conv_backward_input<float>(plan, g, dy.data(), wf.data(), dx.data());
      EXPECT_EQ(Values(dx.begin(), dx.end()), want.dx);
    }
    if (plan_supports(plan, ConvDirection::backward_weight, g)) {
      conv_backward_weight<float>(plan, g, xf.data(), dy.data(), dw.data(), nullptr);
      EXPECT_EQ(Values(dw.begin(), dw.end()), want.dw);
    }
  }
}

void expect_results(const Values& x, const Shape& x_shape, const Values& w, const Shape& w_shape,
                    const Conv2dOptions& options, const Results& want) {
  for (DType dtype : kDtypes) {
    SCOPED_TRACE(concat(dtype));
    const Results got = run(x, x_shape, w, w_shape, options, dtype);
    EXPECT_EQ(got.y, want.y);
    EXPECT_EQ(got.dx, want.dx);
    EXPECT_EQ(got.dw, want.dw);
  }
  Tensor xt = from_vector(x, x_shape).set_requires_grad(), wt = from_vector(w, w_shape).set_requires_grad();
  const GradcheckResult checked =
      gradcheck([&](const Tensors& t) { return conv2d(t[0], t[1], {}, options); }, {xt, wt});
  EXPECT_TRUE(checked.ok) << checked.message;
}

// A row of 4 pixels; along the height nothing happens.
ConvGeometry row_geometry(int64_t width, int64_t kernel, int64_t stride, int64_t left, int64_t right) {
  return {.N = 1,
          .H = 1,
          .W = width,
          .C = 1,
          .K = 1,
          .R = 1,
          .S = kernel,
          .P = 1,
          .Q = (width + left + right - kernel) / stride + 1,
          .stride_h = 1,
          .stride_w = stride,
          .top = 0,
          .bottom = 0,
          .left = left,
          .right = right,
          .dilation_h = 1,
          .dilation_w = 1,
          .groups = 1};
}

TEST(Cases, C36_asymmetric_padding) {
  const Values x(4, 1.0), w(2, 1.0);
  const Results right = {{2, 2, 2, 1}, {1, 2, 2, 2}, {4, 3}}, left = {{1, 2, 2, 2}, {2, 2, 2, 1}, {3, 4}};
  const Conv2dOptions same = same_padding({1, 2});
  EXPECT_EQ(same.padding, (std::array<int64_t, 4>{0, 0, 0, 1}));
  expect_results(x, {1, 1, 4, 1}, w, {1, 1, 2, 1}, same, right);
  expect_results(x, {1, 1, 4, 1}, w, {1, 1, 2, 1}, {.padding = {0, 0, 1, 0}}, left);
  // The same along the height.
  expect_results(x, {1, 4, 1, 1}, w, {1, 2, 1, 1}, same_padding({2, 1}), right);
  expect_by_every_plan(row_geometry(4, 2, 1, 0, 1), x, w, right);
  expect_by_every_plan(row_geometry(4, 2, 1, 1, 0), x, w, left);
}

TEST(Cases, C37_geometry_in_backward) {
  // (a) depthwise, a remainder of the stride, padding: each of two channels as if alone.
  const Values dx = {4, 8, 4, 5, 8, 16, 8, 10, 4, 8, 4, 5, 7, 14, 7, 8};
  Values x, w, dx_two;
  for (int i = 0; i < 16; i++)
    x.insert(x.end(), {1, 2}), dx_two.insert(dx_two.end(), {dx[size_t(i)], 10 * dx[size_t(i)]});
  for (int factor : {1, 10})
    for (int i = 0; i < 9; i++) w.push_back(factor * i);
  const Conv2dOptions depthwise{.stride = {2, 2}, .padding = {1, 1, 1, 1}, .groups = 2};
  const Values y = {
      8 + 7 + 5 + 4, 20 * 24.0, 3 + 4 + 5 + 6 + 7 + 8, 20 * 33.0, 1 + 2 + 4 + 5 + 7 + 8, 20 * 27.0, 36,
      20 * 36.0};
  const Values dw = {1, 2, 2, 2, 4, 4, 2, 4, 4, 2, 4, 4, 4, 8, 8, 4, 8, 8};
  expect_results(x, {1, 4, 4, 2}, w, {2, 3, 3, 1}, depthwise, {y, dx_two, dw});
  const ConvGeometry a{.N = 1,
                       .H = 4,
                       .W = 4,
                       .C = 2,
                       .K = 2,
                       .R = 3,
                       .S = 3,
                       .P = 2,
                       .Q = 2,
                       .stride_h = 2,
                       .stride_w = 2,
                       .top = 1,
                       .bottom = 1,
                       .left = 1,
                       .right = 1,
                       .dilation_h = 1,
                       .dilation_w = 1,
                       .groups = 2};
  expect_by_every_plan(a, x, w, {y, dx_two, dw});

  // (b) the last pixel takes no part, but has a gradient: 0.
  const Values six(6, 1.0), three(3, 1.0);
  const Results b = {{3, 3}, {1, 1, 2, 1, 1, 0}, {2, 2, 2}};
  expect_results(six, {1, 1, 6, 1}, three, {1, 1, 3, 1}, {.stride = {1, 2}}, b);
  expect_by_every_plan(row_geometry(6, 3, 2, 0, 0), six, three, b);

  // (c) a kernel larger than the padded input.
  for (DType dtype : kDtypes) {
    const Tensor image = zeros({1, 3, 3, 1}, dtype), kernel = zeros({1, 5, 5, 1}, dtype);
    const size_t reserved = memory_stats("cpu").reserved_bytes;
    test::expect_error(
        "kernel of 5 along the height (dilation included) is larger than the padded input of 3",
        [&] { conv2d(image, kernel); });
    EXPECT_EQ(memory_stats("cpu").reserved_bytes, reserved);
  }
}

// 50 steps of plain gradient descent of a small net that passes through every plan: first layer, plain,
// strided 1x1, depthwise, linear.
Tensors train(int threads) {
  struct ThreadsGuard {
    explicit ThreadsGuard(int threads) : previous(num_threads()) { set_num_threads(threads); }
    ~ThreadsGuard() { set_num_threads(previous); }
    int previous;
  } guard(threads);
  Tensor x = test::drawn(1, {20, 12, 12, 3}, -1, 1, DType::float32);
  Tensor target = test::drawn(2, {20, 10}, -1, 1, DType::float32);
  Tensors weights;
  for (const Shape& shape :
       {Shape{16, 3, 3, 3}, Shape{16}, Shape{24, 3, 3, 16}, Shape{24}, Shape{32, 1, 1, 24}, Shape{32},
        Shape{32, 3, 3, 1}, Shape{32}, Shape{10, 6 * 6 * 32}, Shape{10}}) {
    const double bound = shape.size() == 1 ? 0.1 : 1 / std::sqrt(double(shape.numel() / shape[0]));
    weights.push_back(
        test::drawn(10 + weights.size(), shape, -bound, bound, DType::float32).set_requires_grad());
  }
  for (int step = 0; step < 50; step++) {
    Tensor h = conv2d_relu(x, weights[0], weights[1], same_padding({3, 3}));
    h = conv2d_relu(h, weights[2], weights[3], same_padding({3, 3}));
    h = conv2d(h, weights[4], weights[5], {.stride = {2, 2}});
    h = conv2d_relu(h, weights[6], weights[7], {.padding = {1, 1, 1, 1}, .groups = 32});
    Tensor y = linear(h.reshape({20, -1}), weights[8], weights[9]);
    Tensor dy = y.detach().clone();  // of half the squared error
    dy.add_(target, -1);
    y.backward(dy);
    NoGradGuard no_grad;
    for (Tensor& w : weights) {
      w.add_(w.grad(), -1e-3);
      w.set_grad({});
    }
  }
  return weights;
}

TEST(Cases, C61_same_bits_for_any_number_of_threads) {
  const Tensors one = train(1);
  for (float v : one.back().to_vector<float>()) EXPECT_TRUE(std::isfinite(v));
  for (int threads : {1, 2, 8}) {
    const Tensors other = train(threads);
    for (size_t i = 0; i < one.size(); i++)
      test::expect_same_bits(one[i], other[i],
                             concat("weight ", i, " after 50 steps with ", threads, " threads"));
  }
}

}  // namespace
}  // namespace lockstep
