#include "lockstep/runtime/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <thread>

#include "lockstep/runtime/parallel.h"
#include "tests/ops/op_harness.h"

namespace lockstep {
namespace {

using Words = std::array<uint32_t, 4>;

// Known answers of Philox4x32-10 from the Random123 distribution (kat_vectors). Its counter is our (block,
// stream).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ((Philox{0}(0, 0)), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ((Philox{~uint64_t(0)}(~uint64_t(0), ~uint64_t(0))),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ((Philox{0x299f31d0a4093822}(0x85a308d3243f6a88, 0x0370734413198a2e)),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, ElementsAreLanesOfBlocks) {
  Generator own(7);
  own.set_state({7, 100});
  GeneratorGuard guard(own);
  std::vector<float> x = rand({10}).to_vector<float>();
  for (size_t i = 0; i < 10; i++) EXPECT_EQ(x[i], uniform_float(Philox{7}(100 + i / 4)[i % 4]));
  EXPECT_EQ(own.state(), (RandomState{7, 103}));  // blocks are not shared between calls
}

TEST(Random, SameNumbersForAnyNumberOfThreads) {
  std::vector<float> uniform, normal;
  for (int threads : {1, 2, 7}) {
    const int before = num_threads();
    set_num_threads(threads);
    manual_seed(3);
    std::vector<float> u = rand({100003}).to_vector<float>(), n = randn({100003}).to_vector<float>();
    set_num_threads(before);
    if (threads == 1) uniform = u, normal = n;
    EXPECT_EQ(u, uniform) << threads;
    EXPECT_EQ(n, normal) << threads;
  }
}

TEST(Random, StateIsSavedAndRestored) {
  manual_seed(11);
  rand({5});
  const RandomState saved = generator().state();
  EXPECT_EQ(saved.seed, 11u);
  std::vector<float> first = randn({1000}).to_vector<float>(), second = rand({3}).to_vector<float>();
  EXPECT_NE(first, randn({1000}).to_vector<float>());
  generator().set_state(saved);
  EXPECT_EQ(randn({1000}).to_vector<float>(), first);
  EXPECT_EQ(rand({3}).to_vector<float>(), second);
  manual_seed(11);
  EXPECT_EQ(generator().state(), (RandomState{11, 0}));
}

TEST(Random, SeedsDiffer) {
  manual_seed(1);
  std::vector<float> one = rand({100}).to_vector<float>();
  manual_seed(2);
  EXPECT_NE(rand({100}).to_vector<float>(), one);
}

struct Moments {
  double mean = 0, variance = 0, skew = 0, kurtosis = 0, low = 0, high = 0;
};
Moments moments(const Tensor& x) {
  std::vector<double> values = x.to_vector<double>();
  Moments m;
  m.low = m.high = values[0];
  for (double v : values)
    m.mean += v / double(values.size()), m.low = std::min(m.low, v), m.high = std::max(m.high, v);
  for (double v : values) m.variance += (v - m.mean) * (v - m.mean) / double(values.size());
  for (double v : values) {
    const double z = (v - m.mean) / std::sqrt(m.variance);
    m.skew += z * z * z / double(values.size());
    m.kurtosis += z * z * z * z / double(values.size());
  }
  return m;
}

// Bounds of five standard errors of each estimate.
TEST(Random, Moments) {
  manual_seed(5);
  constexpr int64_t n = 1000000;
  const double error = 5 / std::sqrt(double(n));
  for (DType dtype : {DType::float64, DType::float32}) {
    Moments uniform = moments(rand({n}, dtype));
    EXPECT_NEAR(uniform.mean, 0.5, error * std::sqrt(1 / 12.0));
    EXPECT_NEAR(uniform.variance, 1 / 12.0, error * std::sqrt(1 / 180.0));
    EXPECT_NEAR(uniform.kurtosis, 1.8, 0.01);
    EXPECT_GE(uniform.low, 0);
    EXPECT_LT(uniform.high, 1);
    Moments normal = moments(randn({n}, dtype));
    EXPECT_NEAR(normal.mean, 0, error);
    EXPECT_NEAR(normal.variance, 1, error * std::sqrt(2.0));
    EXPECT_NEAR(normal.skew, 0, error * std::sqrt(6.0));
    EXPECT_NEAR(normal.kurtosis, 3, error * std::sqrt(24.0));
    EXPECT_LT(std::max(-normal.low, normal.high), 6);
  }
}

TEST(Random, NeighboursAreUncorrelated) {
  manual_seed(6);
  std::vector<double> x = randn({200000}).to_vector<double>();
  for (size_t lag : {1, 2, 3, 4, 5}) {
    double sum = 0;
    for (size_t i = 0; i + lag < x.size(); i++) sum += x[i] * x[i + lag];
    EXPECT_NEAR(sum / double(x.size()), 0, 5 / std::sqrt(double(x.size()))) << lag;
  }
}

TEST(Random, RangesAndDtypes) {
  manual_seed(1);
  for (DType dtype : {DType::float64, DType::float32, DType::float16, DType::bfloat16}) {
    Tensor x = empty({10000}, dtype);
    const uint64_t version = x.version();
    uniform_(x, -3, 5);
    EXPECT_GT(x.version(), version);
    Moments m = moments(x);
    EXPECT_GE(m.low, -3);
    EXPECT_LT(m.high, 5) << dtype;
    EXPECT_NEAR(m.mean, 1, 0.12);
    normal_(x, 10, 2);
    m = moments(x);
    EXPECT_NEAR(m.mean, 10, 0.1);
    EXPECT_NEAR(std::sqrt(m.variance), 2, 0.1);
  }
  Tensor narrow = empty({1000});  // three values of float32: 1, 1 + e, and 1 + 2e, which is excluded
  uniform_(narrow, 1, 1 + 0x1p-22);
  EXPECT_EQ(moments(narrow).low, 1);
  EXPECT_EQ(moments(narrow).high, 1 + 0x1p-23);
  Tensor below_zero = empty({10000}, DType::bfloat16);
  uniform_(below_zero, -1, 0);
  EXPECT_LT(moments(below_zero).high, 0);
  Tensor constant = empty({3});
  uniform_(constant, 2, 2);
  EXPECT_EQ(constant.to_vector<float>(), std::vector<float>(3, 2));
}

// Planning a model on meta does not change what it is then trained with.
TEST(Random, MetaDrawsNothing) {
  manual_seed(1);
  EXPECT_EQ(rand({9}, DType::float32, "meta").shape(), Shape{9});
  EXPECT_EQ(generator().state(), (RandomState{1, 0}));
}

TEST(Random, WhatItRefuses) {
  Tensor x = ones({4, 4}), strided = x.transpose(0, 1), whole = arange(3);
  test::expect_error("low 2 above high 1", [&] { uniform_(x, 2, 1); });
  test::expect_error("std -1", [&] { normal_(x, 0, -1); });
  test::expect_error("contiguous", [&] { uniform_(strided); });
  test::expect_error("floating", [&] { uniform_(whole); });
}

// Threads that draw from one generator get disjoint blocks.
TEST(Random, ConcurrentReservationsAreDisjoint) {
  Generator shared(1);
  std::vector<std::vector<uint64_t>> offsets(4);
  std::vector<std::thread> threads;
  for (auto& mine : offsets)
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; i++) mine.push_back(shared.reserve(8).offset);
    });
  for (auto& thread : threads) thread.join();
  std::set<uint64_t> all;
  for (auto& mine : offsets) all.insert(mine.begin(), mine.end());
  EXPECT_EQ(all.size(), 4000u);
  EXPECT_EQ(shared.state().offset, 8000u);
}

TEST(Random, GuardIsRestoredAndDoesNotTouchTheProcessWideOne) {
  manual_seed(4);
  {
    Generator own(9);
    GeneratorGuard guard(own);
    rand({4});
    EXPECT_EQ(&generator(), &own);
    EXPECT_EQ(own.state().offset, 1u);
  }
  EXPECT_EQ(generator().state(), (RandomState{4, 0}));
}

}  // namespace
}  // namespace lockstep
