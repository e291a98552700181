// Matrix product behind cublas*: C = alpha op(A) op(B) + beta C, column-major.
#pragma once

#include <cstdint>

#include "simgpu/element.h"
#include "simgpu/op.h"

namespace simgpu {

struct Matrix {
  const void* data;
  Type type;
  bool transposed;
  int64_t ld;      // elements from column to column
  int64_t stride;  // elements from one matrix of the batch to the next
};

struct Gemm {
  int64_t m, n, k;
  Matrix a, b, c;
  int64_t batch = 1;
};

// Exact bytes, column by column: what lies between the rows used and the leading dimension is not touched.
std::vector<Range> gemm_ranges(const Gemm& g, bool reads_c, bool reads_ab);
void run_gemm(const Gemm& g, double alpha, double beta);

}  // namespace simgpu
