#include "lockstep/runtime/elementwise.h"

#include <gtest/gtest.h>

#include "tests/ops/op_harness.h"

namespace lockstep {
namespace {

using namespace test;

std::vector<int64_t> offsets(const cpu::Loop& loop, int64_t begin, int64_t end) {
  std::vector<int64_t> result;
  cpu::for_rows(loop, begin, end, [&](int64_t offset, int64_t length) {
    for (int64_t i = 0; i < length; i++) result.push_back(offset + i * loop.strides.back());
  });
  return result;
}

TEST(Elementwise, LoopMergesAxes) {
  Tensor x = zeros({4, 5, 6});
  EXPECT_EQ(cpu::make_loop(x, {4, 5, 6}).shape, Shape({120}));
  EXPECT_EQ(cpu::make_loop(x.slice(1, 0, 3), {4, 3, 6}).shape, Shape({4, 18}));
  EXPECT_EQ(cpu::make_loop(x.transpose(0, 1), {5, 4, 6}).shape, Shape({5, 4, 6}));
  EXPECT_EQ(cpu::make_loop(x, {7, 4, 5, 6}).shape, Shape({7, 120}));
  EXPECT_EQ(cpu::make_loop(x, {7, 4, 5, 6}).strides, Shape({0, 1}));
  EXPECT_EQ(cpu::make_loop(zeros({1, 1}), {3, 5}).shape, Shape({15})) << "broadcast axes merge";
  EXPECT_EQ(cpu::make_loop(zeros({}), {}).shape, Shape({1}));
  EXPECT_THROW(cpu::make_loop(x, {4, 5, 7}), Error);
}

TEST(Elementwise, RowsOfAnyRange) {
  Tensor x = zeros({3, 4, 5}).permute({2, 0, 1});  // [5, 3, 4], strides 1, 20, 5
  cpu::Loop loop = cpu::make_loop(x, x.shape());
  std::vector<int64_t> all;
  for (int64_t i = 0; i < 5; i++)
    for (int64_t j = 0; j < 3; j++)
      for (int64_t k = 0; k < 4; k++) all.push_back(i + 20 * j + 5 * k);
  for (int64_t begin : {0, 1, 11, 12, 30, 59})
    for (int64_t end : {1, 12, 13, 59, 60})
      if (begin < end) {
        EXPECT_EQ(offsets(loop, begin, end), std::vector<int64_t>(all.begin() + begin, all.begin() + end));
      }
}

TEST(Elementwise, MapOverStridesBroadcastAndConstants) {
  // 3 chunks and a rest; y, too, may be strided.
  const Shape shape{7, 7100};
  Tensor a = drawn(1, shape), b = drawn(2, {7100}), c = drawn(3, {7, 1});
  std::vector<double> va = a.to_vector<double>(), vb = b.to_vector<double>(), vc = c.to_vector<double>(),
                      want;
  for (size_t i = 0; i < va.size(); i++) want.push_back(va[i] * 2 + vb[i % 7100] - vc[i / 7100]);
  auto f = [](double p, double q, double r, double two) { return p * two + q - r; };
  for (Tensor y : {empty(shape, DType::float64), empty({7100, 7}, DType::float64).transpose(0, 1),
                   empty({7, 14200}, DType::float64).slice(1, 0, 14200, 2)}) {
    cpu::map<double, double, double, double, double>(y, f, a, b, c, 2.0);
    EXPECT_EQ(y.to_vector<double>(), want);
    cpu::map<double, double, double, double, double>(y, f, with_other_strides(a), with_other_strides(b), c,
                                                     2.0);
    EXPECT_EQ(y.to_vector<double>(), want);
  }
}

TEST(Elementwise, MapInPlace) {
  Tensor y = drawn(1, {3, 20000});
  std::vector<double> want = y.to_vector<double>();
  for (double& v : want) v = v * 2 + 1;
  cpu::map<double, double>(
      y, [](double v) { return v * 2 + 1; }, y);
  EXPECT_EQ(y.to_vector<double>(), want);
}

TEST(Elementwise, MapOfNothing) {
  Tensor y = empty({0, 3}), x = empty({1, 3});
  int calls = 0;
  cpu::map<float, float>(
      y, [&calls](float v) { return calls++, v; }, x);
  EXPECT_EQ(calls, 0);
}

// Lengths around the vector and block sizes: the conversions have vector and scalar parts.
TEST(Elementwise, SixteenBitTypesAreComputedInFloat) {
  for (DType dtype : {DType::float16, DType::bfloat16})
    for (int64_t n : {1, 7, 8, 9, 255, 256, 257, 1000}) {
      Tensor x = drawn(1, {n}, -1, 1, dtype), y = empty({n}, dtype);
      std::vector<float> want = x.to_vector<float>();
      dispatch_float(dtype, [&]<class T>() {
        cpu::map<T, T>(
            y, [](float v) { return v * 3 + 0.1f; }, x);
        for (float& v : want) v = T(v * 3 + 0.1f);
      });
      EXPECT_EQ(y.to_vector<float>(), want) << dtype << " " << n;
    }
}

}  // namespace
}  // namespace lockstep
