#include "lockstep/runtime/gradcheck.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/ops/op_harness.h"
#include "tests/runtime/toy_ops.h"

namespace lockstep {
namespace {

using namespace test;

// y = x^2 with whatever backward is planted.
std::function<Tensor(const Tensors&)> square(
    std::function<Tensor(const Tensor& x, const Tensor& dy)> gradient) {
  return [gradient](const Tensors& inputs) {
    const Tensor& x = inputs[0];
    return record("square", multiplied(x, x), {x},
                  [x = Saved(x), gradient](const Tensor& dy) -> Tensors { return {gradient(x, dy)}; });
  };
}
Tensor right(const Tensor& x, const Tensor& dy) {
  return mapped(multiplied(x, dy), [](double v) { return 2 * v; });
}

TEST(Gradcheck, CorrectOpsPass) {
  Tensor x = drawn(1, {3, 4}, 0.5, 2).set_requires_grad(), y = drawn(2, {3, 4}).set_requires_grad();
  EXPECT_TRUE(gradcheck(square(right), {x}).ok);
  EXPECT_TRUE(gradcheck([](const Tensors& v) { return product(exponential(v[0]), v[1]); }, {x, y}).ok);
  EXPECT_TRUE(gradcheck([](const Tensors& v) { return total(square_root(v[0])); }, {x}).ok);
  EXPECT_TRUE(gradcheck([](const Tensors& v) { return plus(v[0], v[1]); }, {x, leaf({1, 2, 3, 4}, {4})}).ok);
  // An input that takes no part has gradient 0, analytic and numeric.
  EXPECT_TRUE(gradcheck([](const Tensors& v) { return exponential(v[0]); }, {x, y}).ok);
  // Inputs that want no gradient are handed through.
  EXPECT_TRUE(
      gradcheck([](const Tensors& v) { return product(v[0], v[1].to(DType::float64)); }, {x, ones({3, 4})})
          .ok);
}

TEST(Gradcheck, LeavesInputsAsTheyWere) {
  Tensor x = drawn(1, {5}).set_requires_grad();
  const std::vector<double> before = x.to_vector<double>();
  gradcheck(square(right), {x});
  EXPECT_EQ(x.to_vector<double>(), before);
  EXPECT_FALSE(x.grad().defined());
}

// Faults put in on purpose, each of which must be reported.
TEST(Planted, Gradcheck) {
  Tensor x = drawn(1, {2, 3}, 0.5, 2).set_requires_grad();
  auto expect_reported = [&](const std::function<Tensor(const Tensors&)>& f, const std::string& part) {
    GradcheckResult result = gradcheck(f, {x});
    EXPECT_FALSE(result.ok);
    EXPECT_NE(result.message.find(part), std::string::npos) << result.message;
  };
  // A factor left out.
  expect_reported(square([](const Tensor& x, const Tensor& dy) { return multiplied(x, dy); }),
                  "gradient of checked input 0 of shape [2, 3] at element 0");
  // The wrong sign.
  expect_reported(square([](const Tensor& x, const Tensor& dy) {
                    return mapped(right(x, dy), [](double v) { return -v; });
                  }),
                  "element 0");
  // dy left out: right only where dy is 1.
  expect_reported(
      square([](const Tensor& x, const Tensor&) { return mapped(x, [](double v) { return 2 * v; }); }),
      "element");
  // The gradient of one element lost.
  expect_reported(square([](const Tensor& x, const Tensor& dy) {
                    Tensor dx = right(x, dy);
                    dx.select(0, 1).select(0, 2).fill_(0);
                    return dx;
                  }),
                  "element 5");
  // One part in a thousand too large.
  expect_reported(square([](const Tensor& x, const Tensor& dy) {
                    return mapped(right(x, dy), [](double v) { return 1.001 * v; });
                  }),
                  "element");
  // Elements in another order.
  expect_reported(square([](const Tensor& x, const Tensor& dy) {
                    return right(x, dy).reshape({3, 2}).transpose(0, 1).contiguous();
                  }),
                  "element");
  // NaN: no comparison holds.
  expect_reported(square([](const Tensor& x, const Tensor&) {
                    return full(x.shape(), std::numeric_limits<double>::quiet_NaN(), DType::float64);
                  }),
                  "analytic nan");
  // No gradient returned.
  expect_reported(square([](const Tensor&, const Tensor&) { return Tensor(); }), "analytic 0");
  // Not recorded at all.
  expect_reported([](const Tensors& v) { return multiplied(v[0], v[0]); }, "not recorded");
}

TEST(Gradcheck, WhatItRefuses) {
  Tensor x = ones({2});
  expect_error("no input requires a gradient", [&] { gradcheck(square(right), {x}); });
  x.set_requires_grad();
  expect_error("expected contiguous float64 leaves, got float32", [&] { gradcheck(square(right), {x}); });
  expect_error("f returned float32",
               [&] { gradcheck([](const Tensors& v) { return v[0].to(DType::float32); }, {leaf(1)}); });
}

}  // namespace
}  // namespace lockstep
