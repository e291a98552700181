// Inner kernels of the direct plan, compiled once for the baseline and once for AVX-512. One sample at a
// time; an image is [rows, pixels * channels]. Only plain declarations here: code inlined into the AVX-512
// file must not reach other files.
#pragma once

#include <cstdint>

namespace lockstep::cpu {

// y[i, l] = bias[l] + sum of x[r * row_step + i * pixel_step + j] * w[r, j, l] (pixels i, lanes l)
//   forward                j: columns and channels of a row of the kernel, l: filters
//   backward of the input  j: filters, l: columns and channels of a row of the kernel
struct DirectRow {
  const float* x;
  int64_t row_step, pixel_step;
  int64_t rows, inner;  // of r, of j
  const float* w;       // [rows, inner, w_step]
  int64_t w_step;       // a multiple of the vector's length, at least `lanes`
  const float* bias;    // w_step values, or null
  bool relu;
  float* y;  // [pixels], y_step apart
  int64_t y_step;
  int64_t pixels, lanes;
};

// sums[r, j, k] += sum over p, q of x[(p + r) * row_step + q * channels + j] * dy[p, q, k]
struct DirectWeightGradient {
  const float* x;
  int64_t row_step, channels;
  int64_t rows, inner;  // of r, of j
  const float* dy;      // [P, Q, filters]
  int64_t P, Q, filters;
  float* sums;       // [rows, inner, sum_step]
  int64_t sum_step;  // a multiple of the vector's length, at least `filters`
};

struct DirectKernels {
  int64_t lanes;  // floats of a vector
  void (*row)(const DirectRow&);
  void (*weight_gradient)(const DirectWeightGradient&);
  // dx[w, c] = sum over s of sums[w + left - s, s * channels + c] for the outputs in [0, outputs) of one row:
  // what each output wrote for the pixels under the kernel. `sums` has a row of sum_step per output and 8
  // values behind the last; channels <= 8.
  void (*gather)(const float* sums, int64_t sum_step, int64_t outputs, int64_t kernel, int64_t left,
                 int64_t channels, int64_t pixels, float* dx);
};

const DirectKernels* direct_kernels_baseline();
const DirectKernels* direct_kernels_avx512();  // null if not compiled in

}  // namespace lockstep::cpu
