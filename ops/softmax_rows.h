// What softmax and cross-entropy share on the CPU: one pass over a row of n logits for its largest value, one
// for the sum of exp(x - max), which is at least 1 and never overflows. A row of -inf alone has max -inf and
// gives NaN, as do NaNs.
#pragma once

#include <cstdint>
#include <limits>

#include "lockstep/ops/math.h"
#include "lockstep/runtime/dtype.h"
#include "lockstep/runtime/parallel.h"

namespace lockstep::cpu {

template <class T>
Compute<T> row_max(const T* __restrict x, int64_t n) {
  Compute<T> max = -std::numeric_limits<Compute<T>>::infinity();
#pragma omp simd reduction(max : max)
  for (int64_t i = 0; i < n; i++) {
    const Compute<T> value = x[i];
    max = value > max ? value : max;
  }
  return max;
}

template <class T>
double row_sum_exp(const T* __restrict x, int64_t n, Compute<T> max) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += math::exp(Compute<T>(x[i]) - max);
  return sum;
}

// Rows of length n that make a chunk; an exp costs as much as several cheap elements.
inline int64_t softmax_grain(int64_t n) {
  return std::max<int64_t>(1, kElementGrain / 4 / std::max<int64_t>(1, n));
}

}  // namespace lockstep::cpu
