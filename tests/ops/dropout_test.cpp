#include "lockstep/ops/dropout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/runtime/parallel.h"
#include "tests/ops/op_harness.h"

namespace lockstep {
namespace {

using test::check_op;
using test::expect_same_bits;

// Draws the words one by one, as random.h defines them.
std::vector<bool> expected_keep(RandomState start, int64_t n, double p) {
  std::vector<bool> keep;
  for (int64_t i = 0; i < n; i++)
    keep.push_back(uniform_float(Philox{start.seed}(start.offset + uint64_t(i / 4))[size_t(i % 4)]) >= p);
  return keep;
}

TEST(OpDropout, Row) {
  constexpr double kP = 0.3;
  check_op({.name = "dropout",
            .inputs = {{.shape = {7, 29}}},
            .op =
                [](const Tensors& x) {
                  Generator fresh(5);
                  GeneratorGuard guard(fresh);
                  return dropout(x[0], kP);
                },
            .reference =
                [](const Tensors& x) {
                  std::vector<double> y = x[0].to_vector<double>();
                  std::vector<bool> keep = expected_keep({5, 0}, int64_t(y.size()), kP);
                  for (size_t i = 0; i < y.size(); i++) y[i] = keep[i] ? y[i] / (1 - kP) : 0;
                  return from_vector(y, x[0].shape());
                },
            .bad = {{"p = -0.1", [] { dropout(ones({2}), -0.1); }},
                    {"p = 1.5", [] { dropout(ones({2}), 1.5, false); }},
                    {"p = nan", [] { dropout(ones({2}), std::nan("")); }},
                    {"expected a floating-point dtype", [] { dropout(arange(3)); }}},
            .empty_shapes = {{0, 5}}});
}

// 100,003 elements: several chunks, the last group not full, and a start that is not block 0.
TEST(OpDropout, MaskIsTheGeneratorsForAnyThreadCount) {
  const int64_t n = 100003;
  const int threads_before = num_threads();
  for (int threads : {1, 2, 7}) {
    set_num_threads(threads);
    Generator fresh(99);
    fresh.set_state({99, 0xfffffff0});  // the block's number passes 2^32 on the way
    GeneratorGuard guard(fresh);
    Tensor x = ones({n}).set_requires_grad();
    Tensor y = dropout(x, 0.5);
    y.backward(ones({n}));
    std::vector<bool> keep = expected_keep({99, 0xfffffff0}, n, 0.5);
    std::vector<float> got = y.to_vector<float>(), dx = x.grad().to_vector<float>();
    for (size_t i = 0; i < keep.size(); i++) {
      ASSERT_EQ(got[i], keep[i] ? 2.0f : 0.0f) << i << " with " << threads << " threads";
      ASSERT_EQ(dx[i], got[i]) << i;
    }
  }
  set_num_threads(threads_before);
}

TEST(OpDropout, StateAdvancesAndRestores) {
  Generator fresh(3);
  GeneratorGuard guard(fresh);
  Tensor x = ones({1001});
  const RandomState start = generator().state();
  Tensor first = dropout(x, 0.5);
  EXPECT_EQ(generator().state().offset, start.offset + 251);  // four numbers a block
  Tensor second = dropout(x, 0.5);
  EXPECT_NE(first.to_vector<float>(), second.to_vector<float>());
  generator().set_state(start);
  expect_same_bits(dropout(x, 0.5), first, "after the state was restored");
}

TEST(OpDropout, KeepsTheMeanAndTheRate) {
  Generator fresh(1);
  GeneratorGuard guard(fresh);
  const int64_t n = 1000000;
  for (double p : {0.1, 0.5, 0.9}) {
    double kept = 0, sum = 0;
    for (float v : dropout(ones({n}), p).to_vector<float>()) kept += v != 0, sum += v;
    const double sigma = std::sqrt(double(n) * p * (1 - p));
    EXPECT_NEAR(kept, double(n) * (1 - p), 5 * sigma) << p;
    EXPECT_NEAR(sum / double(n), 1, 5 * sigma / double(n) / (1 - p)) << p;
  }
}

TEST(OpDropout, EdgeProbabilities) {
  Generator fresh(1);
  GeneratorGuard guard(fresh);
  const float inf = std::numeric_limits<float>::infinity();
  Tensor x = from_vector<float>({1, -2, inf, std::nanf("")}).set_requires_grad();
  EXPECT_TRUE(dropout(x, 0).same_as(x));
  EXPECT_TRUE(dropout(x, 0.5, false).same_as(x));
  EXPECT_EQ(generator().state().offset, 0u) << "nothing was to be drawn";
  Tensor y = dropout(x, 1);
  EXPECT_EQ(y.to_vector<float>(), (std::vector<float>{0, 0, 0, 0}));
  y.backward(full({4}, inf));
  EXPECT_EQ(x.grad().to_vector<float>(), (std::vector<float>{0, 0, 0, 0}));
}

TEST(OpDropout, MetaDrawsNothing) {
  Generator fresh(1);
  GeneratorGuard guard(fresh);
  dropout(empty({100}, DType::float32, "meta"), 0.5);
  EXPECT_EQ(generator().state().offset, 0u);
}

}  // namespace
}  // namespace lockstep
