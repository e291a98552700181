// Matrix products of the CPU back end, shared by matmul, linear and conv2d. Matrices are row-major; T is
// float or double.
#pragma once

#include <cstdint>

#include "lockstep/runtime/stream.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep::cpu {

// C = alpha op(A) op(B) + beta C, plus `bias` (N values, or null) added to each row.
//   op(A)  [M, K]: A itself with rows lda apart, or the transpose of A [K, M]
//   op(B)  [K, N]: likewise with ldb
//   C      [M, N], rows ldc apart; not read where beta is 0
// float: oneDNN, or Eigen in a build without it; double: Eigen. Cut into tiles by M, N and K alone, so the
// result has the same bits for any number of threads; it may be called from inside a parallel region.
template <class T>
void gemm(bool transpose_a, bool transpose_b, int64_t M, int64_t N, int64_t K, T alpha, const T* A,
          int64_t lda, const T* B, int64_t ldb, T beta, T* C, int64_t ldc, const T* bias = nullptr);

// The same as one tile in the calling thread: for callers that are one of many chunks already.
template <class T>
void gemm_tile(bool transpose_a, bool transpose_b, int64_t M, int64_t N, int64_t K, T alpha, const T* A,
               int64_t lda, const T* B, int64_t ldb, T beta, T* C, int64_t ldc, const T* bias = nullptr);

// sums[j] = sum over i of x[i, j] for x [rows, columns], accurate for long columns: no more than 16 values
// are added before the sum goes on in double. The gradient of a bias.
template <class T>
void column_sums(const T* x, int64_t rows, int64_t columns, T* sums);

// 16-bit tensors are multiplied as float32: x converted, row-major; undefined stays undefined.
inline bool is_16_bit(const Tensor& x) { return x.dtype() == DType::float16 || x.dtype() == DType::bfloat16; }
Tensor widen(const Tensor& x, Stream s);

// Calls f.operator()<T>() with T double for float64 and float for float32.
template <class F>
void dispatch_wide(DType dtype, F&& f) {
  if (dtype == DType::float64) f.template operator()<double>();
  else f.template operator()<float>();
}

// Where T's data begin; null for an undefined tensor (a bias that is not there).
template <class T>
T* data_or_null(const Tensor& x) {
  return x.defined() ? x.data<T>() : nullptr;
}

}  // namespace lockstep::cpu
