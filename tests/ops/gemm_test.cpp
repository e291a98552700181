#include "lockstep/ops/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "lockstep/runtime/parallel.h"
#include "tests/ops/op_harness.h"

namespace lockstep {
namespace {

struct Product {
  int64_t M, N, K;
};

// One of each kind of grid: one tile, tiles of rows, tiles of columns, a split K; then sizes 1.
constexpr Product kProducts[] = {{17, 10, 33}, {64, 120, 400}, {300, 70, 90},  {40, 1100, 70}, {12, 20, 2200},
                                 {1, 1, 5000}, {1, 50, 1},     {600, 1030, 5}, {3, 2100, 500}};

template <class T>
std::vector<T> values(uint64_t seed, int64_t count) {
  std::vector<double> drawn = test::draw(seed, count);
  return {drawn.begin(), drawn.end()};
}

template <class T>
class GemmTest : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(GemmTest, Types);

TYPED_TEST(GemmTest, AgreesWithLoopsForEveryTranspositionAndLeavesTheRestAlone) {
  using T = TypeParam;
  for (auto [M, N, K] : kProducts)
    for (int transposed = 0; transposed < 4; transposed++) {
      const bool ta = transposed & 1, tb = transposed & 2;
      const int64_t lda = (ta ? M : K) + 3, ldb = (tb ? K : N) + 2, ldc = N + 1;
      const std::vector<T> a = values<T>(1, (ta ? K : M) * lda), b = values<T>(2, (tb ? N : K) * ldb);
      const std::vector<T> bias = values<T>(3, N), before = values<T>(4, M * ldc);
      const bool plain = transposed == 0;
      const T alpha = plain ? T(1) : T(0.5), beta = transposed == 1 ? T(0) : T(2);
      std::vector<T> c = before;
      if (beta == 0)
        for (int64_t i = 0; i < M; i++) std::fill_n(c.data() + i * ldc, N, T(NAN));  // not to be read
      cpu::gemm<T>(ta, tb, M, N, K, alpha, a.data(), lda, b.data(), ldb, beta, c.data(), ldc,
                   plain ? nullptr : bias.data());
      const double allowed = test::tolerance(dtype_of<T>, K) * std::sqrt(double(K));
      int64_t wrong = 0;
      for (int64_t i = 0; i < M; i++) {
        // Large products are checked on some elements.
        for (int64_t j = 0; j < N; j += std::max<int64_t>(1, M * N * K / 2'000'000)) {
          double sum = 0;
          for (int64_t k = 0; k < K; k++)
            sum += double(a[size_t(ta ? k * lda + i : i * lda + k)]) *
                   double(b[size_t(tb ? j * ldb + k : k * ldb + j)]);
          const double want = double(alpha) * sum + (plain ? 0 : double(bias[size_t(j)])) +
                              (beta == 0 ? 0 : double(beta) * double(before[size_t(i * ldc + j)]));
          wrong += !(std::abs(double(c[size_t(i * ldc + j)]) - want) <= allowed);
        }
        EXPECT_EQ(c[size_t(i * ldc + N)], before[size_t(i * ldc + N)]) << "written past row " << i;
      }
      EXPECT_EQ(wrong, 0) << M << " x " << N << " x " << K << ", transposed " << transposed;
    }
}

TYPED_TEST(GemmTest, SameBitsForAnyNumberOfThreads) {
  using T = TypeParam;
  const int before = num_threads();
  for (auto [M, N, K] : kProducts) {
    const std::vector<T> a = values<T>(1, M * K), b = values<T>(2, K * N), bias = values<T>(3, N);
    std::vector<T> one(size_t(M * N)), many(size_t(M * N));
    set_num_threads(1);
    cpu::gemm<T>(false, true, M, N, K, 1, a.data(), K, b.data(), K, 0, one.data(), N, bias.data());
    for (int threads : {2, 7, 8}) {
      set_num_threads(threads);
      cpu::gemm<T>(false, true, M, N, K, 1, a.data(), K, b.data(), K, 0, many.data(), N, bias.data());
      EXPECT_EQ(std::memcmp(one.data(), many.data(), one.size() * sizeof(T)), 0)
          << M << " x " << N << " x " << K << ", " << threads << " threads";
      // From inside a parallel region.
      parallel_chunks(2, [&](int64_t chunk) {
        if (chunk == 0)
          cpu::gemm<T>(false, true, M, N, K, 1, a.data(), K, b.data(), K, 0, many.data(), N, bias.data());
      });
      EXPECT_EQ(std::memcmp(one.data(), many.data(), one.size() * sizeof(T)), 0)
          << "nested, " << threads << " threads";
    }
  }
  set_num_threads(before);
}

TYPED_TEST(GemmTest, AnEmptySumIsZero) {
  using T = TypeParam;
  T c[2] = {T(NAN), T(NAN)}, bias[2] = {3, 4};
  cpu::gemm<T>(false, false, 1, 2, 0, 1, nullptr, 1, nullptr, 2, 0, c, 2);
  EXPECT_EQ(c[0], 0);
  cpu::gemm<T>(false, false, 1, 2, 0, 1, nullptr, 1, nullptr, 2, 0, c, 2, bias);
  EXPECT_EQ(c[1], 4);
}

TYPED_TEST(GemmTest, ColumnSumsAreAccurateAndTheSameForAnyNumberOfThreads) {
  using T = TypeParam;
  const int before = num_threads();
  for (int64_t columns : {1, 6, 10, 16, 63, 100}) {
    const int64_t rows = columns == 1 ? 1'000'001 : 50'003;
    std::vector<T> x(size_t(rows * columns));
    for (size_t i = 0; i < x.size(); i++) x[i] = T(0.1) + T(i % size_t(columns));
    const size_t width = size_t(columns);
    std::vector<T> one(width), many(width);
    set_num_threads(1);
    cpu::column_sums(x.data(), rows, columns, one.data());
    for (int64_t j = 0; j < columns; j++) {
      const double want = double(rows) * double(T(0.1) + T(j));
      EXPECT_NEAR(double(one[size_t(j)]), want, want * 1e-6) << "column " << j << " of " << columns;
    }
    for (int threads : {2, 7}) {
      set_num_threads(threads);
      cpu::column_sums(x.data(), rows, columns, many.data());
      EXPECT_EQ(one, many);
    }
  }
  set_num_threads(before);
}

}  // namespace
}  // namespace lockstep
