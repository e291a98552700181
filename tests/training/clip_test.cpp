#include "lockstep/training/clip.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/parallel.h"
#include "lockstep/runtime/random.h"

namespace lockstep {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor with_grad(const std::vector<double>& grad, DType dtype = DType::float32) {
  Tensor w = zeros({int64_t(grad.size())}, dtype).set_requires_grad();
  w.set_grad(from_vector(grad).to(dtype));
  return w;
}

TEST(Cases, C68_gradient_norm_clipping_edges) {
  Tensors large;
  for (int i = 0; i < 100; i++) large.push_back(with_grad({1e20}));
  EXPECT_NEAR(clip_grad_norm(large, 1) / 1e21, 1, 1e-7);
  for (const Tensor& w : large) EXPECT_NEAR(w.grad().item(), 0.1, 1e-7);

  EXPECT_EQ(clip_grad_norm({}, 1), 0);
  EXPECT_EQ(clip_grad_norm({zeros({3}).set_requires_grad()}, 1), 0);

  for (double bad : {std::nan(""), kInfinity, -kInfinity}) {
    Tensors broken{with_grad({3, 4}), with_grad({bad, 1})};
    double norm = clip_grad_norm(broken, 1);
    EXPECT_TRUE(std::isnan(bad) ? std::isnan(norm) : norm == kInfinity);
    EXPECT_THROW(clip_grad_norm(broken, 1, {.error_if_nonfinite = true}), Error);
    EXPECT_EQ(broken[0].grad().to_vector<float>(), (std::vector<float>{3, 4}));
    EXPECT_EQ(broken[1].grad().to_vector<float>()[1], 1.0f);
  }

  Tensor half = with_grad({5000}, DType::float16);
  EXPECT_EQ(clip_grad_norm({half}, 10000), 5000);
  EXPECT_EQ(half.grad().item<float>(), 5000.0f);

  Tensor zero = with_grad({0, 0});
  EXPECT_EQ(clip_grad_norm({zero}, 1), 0);
  EXPECT_EQ(clip_grad_norm({zero}, 0), 0);
  EXPECT_EQ(zero.grad().to_vector<float>(), (std::vector<float>{0, 0}));
}

TEST(ClipGradNorm, scales_all_gradients_together) {
  for (DType dtype : {DType::float64, DType::float32, DType::float16, DType::bfloat16}) {
    Tensor a = with_grad({3, 0}, dtype), b = with_grad({4}, dtype);
    uint64_t version = a.grad().version();
    EXPECT_EQ(clip_grad_norm({a, b}, 2.5), 5);
    EXPECT_EQ(a.grad().to_vector<float>(), (std::vector<float>{1.5, 0}));
    EXPECT_EQ(b.grad().item<float>(), 2.0f);
    EXPECT_GT(a.grad().version(), version);
    EXPECT_EQ(clip_grad_norm({a, b}, kInfinity), 2.5);
    EXPECT_EQ(b.grad().item<float>(), 2.0f);
  }
}

TEST(ClipGradNorm, takes_doubles_whose_squares_do_not_fit) {
  for (double value : {1e200, 1e-200, 5e-324}) {
    Tensor w = with_grad({value, value, value, value}, DType::float64);
    EXPECT_DOUBLE_EQ(clip_grad_norm({w}, kInfinity), 2 * value);
  }
  Tensor huge = with_grad({1e200}, DType::float64);
  clip_grad_norm({huge}, 1);
  EXPECT_NEAR(huge.grad().item(), 1, 1e-12);
}

TEST(ClipGradNorm, has_the_same_bits_for_any_threads) {
  const int threads = num_threads();
  auto run = [](int count) {
    set_num_threads(count);
    Generator generator(3);
    GeneratorGuard guard(generator);
    Tensors all;
    double exact = 0;
    for (int64_t n : {5, 100003, 16384, 1}) {
      Tensor w = zeros({n}).set_requires_grad();
      w.set_grad(randn({n}));
      for (double value : w.grad().to_vector<double>()) exact += value * value;
      all.push_back(w);
    }
    double norm = clip_grad_norm(all, 1);
    EXPECT_NEAR(norm, std::sqrt(exact), 1e-10);
    auto values = all[1].grad().to_vector<float>();
    values.push_back(float(norm));
    return values;
  };
  auto one = run(1);
  EXPECT_EQ(run(2), one);
  EXPECT_EQ(run(7), one);
  set_num_threads(threads);
}

TEST(ClipGradNorm, scales_an_expanded_gradient_once) {
  Tensor w = zeros({4}).set_requires_grad();
  w.set_grad(scalar(1.0f).expand({4}));
  EXPECT_EQ(clip_grad_norm({w}, 1), 2);
  EXPECT_EQ(w.grad().to_vector<float>(), (std::vector<float>{0.5, 0.5, 0.5, 0.5}));
}

TEST(ClipGradNorm, refuses_bad_arguments) {
  Tensor w = with_grad({1});
  EXPECT_THROW(clip_grad_norm({w}, -1), Error);
  EXPECT_THROW(clip_grad_norm({w}, std::nan("")), Error);
  EXPECT_THROW(clip_grad_norm({w, w}, 1), Error);
  EXPECT_THROW(clip_grad_norm({Tensor()}, 1), Error);
  EXPECT_EQ(w.grad().item<float>(), 1.0f);
}

}  // namespace
}  // namespace lockstep
