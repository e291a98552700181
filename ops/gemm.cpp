// Threads are ours (Note [Fixed chunks]), not Eigen's.
#define EIGEN_DONT_PARALLELIZE
#include "lockstep/ops/gemm.h"

#include <Eigen/Core>
#include <algorithm>
#include <numeric>
#include <type_traits>
#include <vector>

#include "lockstep/ops/onednn.h"
#include "lockstep/runtime/allocator.h"
#include "lockstep/runtime/parallel.h"
#include "lockstep/runtime/primitives.h"

namespace lockstep::cpu {
namespace {

#ifdef LOCKSTEP_ONEDNN
constexpr bool kOnednn = true;
#else
constexpr bool kOnednn = false;
#endif

template <class T>
using Matrix =
    Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, 0, Eigen::OuterStride<>>;
template <class T>
using ConstMatrix = Eigen::Map<const Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, 0,
                               Eigen::OuterStride<>>;

template <class T>
void eigen_gemm(bool transpose_a, bool transpose_b, int64_t M, int64_t N, int64_t K, T alpha, const T* A,
                int64_t lda, const T* B, int64_t ldb, T beta, T* C, int64_t ldc) {
  ConstMatrix<T> a(A, transpose_a ? K : M, transpose_a ? M : K, Eigen::OuterStride<>(lda));
  ConstMatrix<T> b(B, transpose_b ? N : K, transpose_b ? K : N, Eigen::OuterStride<>(ldb));
  Matrix<T> c(C, M, N, Eigen::OuterStride<>(ldc));
  if (beta == 0) c.setZero();
  else if (beta != 1) c *= beta;
  if (transpose_a && transpose_b) c.noalias() += alpha * a.transpose() * b.transpose();
  else if (transpose_a) c.noalias() += alpha * a.transpose() * b;
  else if (transpose_b) c.noalias() += alpha * a * b.transpose();
  else c.noalias() += alpha * a * b;
}

// Where a product is cut. Measured on AVX-512 cores: few rows and a long K give too few tiles, so K is cut
// and the partial products are added; small products are not worth a second thread; else tiles of rows, or of
// columns where rows are long.
struct Grid {
  int64_t tile_m, tile_n, splits;
};

Grid grid_for(int64_t M, int64_t N, int64_t K) {
  if (M * N <= 16384 && K >= 2048) return {M, N, 16};
  if (2.0 * double(M) * double(N) * double(K) < 3e6) return {M, N, 1};
  if (N >= 1024) return {std::min<int64_t>(M, 512), 256, 1};
  return {std::clamp<int64_t>((M + 511) / 512 * 32, 32, 512), N, 1};
}

// sums += the column sums of x [rows, columns].
template <class T>
void add_rows(const T* x, int64_t rows, int64_t columns, double* sums) {
  constexpr int64_t kRows = 16, kLanes = 16;
  for (int64_t begin = 0; begin < rows; begin += kRows) {
    const int64_t end = std::min(rows, begin + kRows);
    for (int64_t j = 0; j < columns; j += kLanes) {
      const int64_t lanes = std::min(kLanes, columns - j);
      T partial[kLanes] = {};
      if (lanes == kLanes) {
        for (int64_t i = begin; i < end; i++)
          for (int64_t lane = 0; lane < kLanes; lane++) partial[lane] += x[i * columns + j + lane];
      } else {
        for (int64_t i = begin; i < end; i++)
          for (int64_t lane = 0; lane < lanes; lane++) partial[lane] += x[i * columns + j + lane];
      }
      for (int64_t lane = 0; lane < lanes; lane++) sums[j + lane] += double(partial[lane]);
    }
  }
}

// The same for narrow x: several rows are taken as one, of a length that fills the lanes.
template <class T>
void add_narrow_rows(const T* x, int64_t rows, int64_t columns, double* sums) {
  const int64_t fold = columns < 64 ? 16 / std::gcd(columns, int64_t(16)) : 1;
  if (fold == 1) return add_rows(x, rows, columns, sums);
  double wide[64 * 16] = {};
  add_rows(x, rows / fold, fold * columns, wide);
  add_rows(x + rows / fold * fold * columns, rows % fold, columns, sums);
  for (int64_t i = 0; i < fold; i++)
    for (int64_t j = 0; j < columns; j++) sums[j] += wide[i * columns + j];
}

}  // namespace

template <class T>
void gemm_tile(bool transpose_a, bool transpose_b, int64_t M, int64_t N, int64_t K, T alpha, const T* A,
               int64_t lda, const T* B, int64_t ldb, T beta, T* C, int64_t ldc, const T* bias) {
  if (M == 0 || N == 0) return;
  if (bias || K == 0) {
    for (int64_t i = 0; i < M; i++)
      for (int64_t j = 0; j < N; j++)
        C[i * ldc + j] = (bias ? bias[j] : T(0)) + (beta == 0 ? T(0) : beta * C[i * ldc + j]);
    beta = 1;
  }
  if (K == 0) return;
#ifdef LOCKSTEP_ONEDNN
  if constexpr (std::is_same_v<T, float>)
    return onednn::sgemm(transpose_a, transpose_b, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
#endif
  if constexpr (!kOnednn || std::is_same_v<T, double>)
    eigen_gemm(transpose_a, transpose_b, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
}

template <class T>
void gemm(bool transpose_a, bool transpose_b, int64_t M, int64_t N, int64_t K, T alpha, const T* A,
          int64_t lda, const T* B, int64_t ldb, T beta, T* C, int64_t ldc, const T* bias) {
  if (M == 0 || N == 0) return;
  const Grid grid = grid_for(M, N, K);
  if (grid.splits == 1) {
    const int64_t tiles_m = (M + grid.tile_m - 1) / grid.tile_m,
                  tiles_n = (N + grid.tile_n - 1) / grid.tile_n;
    parallel_chunks(tiles_m * tiles_n, [&](int64_t tile) {
      const int64_t m = tile % tiles_m * grid.tile_m, n = tile / tiles_m * grid.tile_n;
      gemm_tile(transpose_a, transpose_b, std::min(grid.tile_m, M - m), std::min(grid.tile_n, N - n), K,
                alpha, A + (transpose_a ? m : m * lda), lda, B + (transpose_b ? n * ldb : n), ldb, beta,
                C + m * ldc + n, ldc, bias ? bias + n : nullptr);
    });
    return;
  }
  Memory memory(Device(), size_t(grid.splits * M * N) * sizeof(T));
  T* partials = static_cast<T*>(memory.data());
  parallel_chunks(grid.splits, [&](int64_t split) {
    const int64_t begin = split * K / grid.splits, end = (split + 1) * K / grid.splits;
    gemm_tile(transpose_a, transpose_b, M, N, end - begin, alpha, A + (transpose_a ? begin * lda : begin),
              lda, B + (transpose_b ? begin : begin * ldb), ldb, T(0), partials + split * M * N, N);
  });
  parallel_for(M, (2048 + N - 1) / N, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      T* __restrict c = C + i * ldc;
      for (int64_t j = 0; j < N; j++) c[j] = (bias ? bias[j] : T(0)) + (beta == 0 ? T(0) : beta * c[j]);
      for (int64_t split = 0; split < grid.splits; split++) {
        const T* __restrict partial = partials + (split * M + i) * N;
        for (int64_t j = 0; j < N; j++) c[j] += partial[j];
      }
    }
  });
}

template <class T>
void column_sums(const T* x, int64_t rows, int64_t columns, T* sums) {
  if (columns == 0) return;
  const int64_t grain = std::max({(rows + 63) / 64, 65536 / columns, int64_t(1)});
  const int64_t chunks = std::max<int64_t>((rows + grain - 1) / grain, 1);
  std::vector<double> partials(size_t(chunks * columns));
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
    add_narrow_rows(x + begin * columns, end - begin, columns, partials.data() + begin / grain * columns);
  });
  for (int64_t j = 0; j < columns; j++) {
    double sum = 0;
    for (int64_t chunk = 0; chunk < chunks; chunk++) sum += partials[size_t(chunk * columns + j)];
    sums[j] = T(sum);
  }
}

Tensor widen(const Tensor& x, Stream s) {
  if (!x.defined()) return x;
  Tensor y = empty(x.shape(), DType::float32, x.device());
  copy(x, y, s);
  return y;
}

#define LOCKSTEP_INSTANTIATE(T)                                                                              \
  template void gemm(bool, bool, int64_t, int64_t, int64_t, T, const T*, int64_t, const T*, int64_t, T, T*,  \
                     int64_t, const T*);                                                                     \
  template void gemm_tile(bool, bool, int64_t, int64_t, int64_t, T, const T*, int64_t, const T*, int64_t, T, \
                          T*, int64_t, const T*);                                                            \
  template void column_sums(const T*, int64_t, int64_t, T*);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep::cpu
