#include "lockstep/training/init.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "lockstep/runtime/random.h"

namespace lockstep {
namespace {

struct Moments {
  double mean, std, largest;
};

Moments moments(const Tensor& x) {
  double sum = 0, squares = 0, largest = 0;
  auto values = x.to_vector<double>();
  for (double value : values) {
    sum += value;
    squares += value * value;
    largest = std::max(largest, std::abs(value));
  }
  double n = double(values.size()), mean = sum / n;
  return {mean, std::sqrt(squares / n - mean * mean), largest};
}

// A uniform of `bound`, or a normal of `std`, to within five standard errors.
void expect_uniform(const Tensor& x, double bound) {
  Moments m = moments(x);
  double std = bound / std::sqrt(3.0), error = 5 * std / std::sqrt(double(x.numel()));
  EXPECT_NEAR(m.mean, 0, error);
  EXPECT_NEAR(m.std, std, error);
  EXPECT_LE(m.largest, bound * (1 + 1e-6));
  EXPECT_GT(m.largest, bound * 0.99);
}
void expect_normal(const Tensor& x, double std) {
  Moments m = moments(x);
  double error = 5 * std / std::sqrt(double(x.numel()));
  EXPECT_NEAR(m.mean, 0, error);
  EXPECT_NEAR(m.std, std, error);
  EXPECT_GT(m.largest, 3 * std);
}

TEST(Init, draws_the_distributions_of_pytorch) {
  Generator generator(1);
  GeneratorGuard guard(generator);
  Tensor linear = empty({50, 200}), filter = empty({16, 3, 5, 32});  // out, in; K R S C
  EXPECT_EQ(init::fan_in(linear), 200);
  EXPECT_EQ(init::fan_out(linear), 50);
  EXPECT_EQ(init::fan_in(filter), 3 * 5 * 32);
  EXPECT_EQ(init::fan_out(filter), 16 * 3 * 5);

  Tensor bias = empty({5000});
  init::layer_default(linear, bias);
  expect_uniform(linear, 1 / std::sqrt(200.0));
  expect_uniform(bias, 1 / std::sqrt(200.0));
  init::layer_default(filter, {});
  expect_uniform(filter, 1 / std::sqrt(480.0));
  init::kaiming_uniform(filter);
  expect_uniform(filter, std::sqrt(6.0 / 480));
  init::kaiming_normal(filter, 0, init::Fan::out);
  expect_normal(filter, std::sqrt(2.0 / 240));
  init::xavier_uniform(linear, 2);
  expect_uniform(linear, 2 * std::sqrt(6.0 / 250));
  init::xavier_normal(linear);
  expect_normal(linear, std::sqrt(2.0 / 250));
  init::normal(linear);
  expect_normal(linear, 1);
  init::constant(linear, 0.5);
  EXPECT_EQ(moments(linear).std, 0);
  EXPECT_EQ(moments(linear).mean, 0.5);
}

TEST(Init, works_on_parameters_and_repeats_with_the_seed) {
  Tensor w = zeros({4, 4}).set_requires_grad();
  auto draw = [&] {
    Generator generator(5);
    GeneratorGuard guard(generator);
    init::kaiming_uniform(w);
    return w.to_vector<float>();
  };
  EXPECT_EQ(draw(), draw());
  EXPECT_TRUE(w.is_leaf());
}

TEST(Init, draws_nothing_on_meta) {
  RandomState before = generator().state();
  Tensor w = empty({4, 4}, DType::float32, "meta");
  init::layer_default(w, w);
  init::normal(w);
  init::constant(w, 1);
  EXPECT_EQ(generator().state(), before);
}

TEST(Init, edges) {
  EXPECT_THROW(init::kaiming_uniform(zeros({4})), Error);
  init::layer_default(empty({4, 0}), empty({4}));
  init::layer_default(empty({0, 4}), empty({0}));
}

}  // namespace
}  // namespace lockstep
