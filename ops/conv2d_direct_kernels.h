// The code of conv2d_direct.h for vectors of kLanes floats; included by one file per instruction set, which
// defines LOCKSTEP_LANES. Everything is local to that file. Sums stay in registers over the whole kernel
// (forward, backward of the input) or the whole image (weight gradient): pixels x vectors of them, as many as
// hide the latency of the multiply-add and fit in the register file.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "lockstep/ops/conv2d_direct.h"

#define LOCKSTEP_INLINE inline __attribute__((always_inline))
#define LOCKSTEP_UNROLL _Pragma("GCC unroll 32")

namespace lockstep::cpu {
namespace {

constexpr int kLanes = LOCKSTEP_LANES;
constexpr int kRegisters = kLanes == 16 ? 32 : 16;

typedef float Vector __attribute__((vector_size(4 * kLanes)));
typedef float UnalignedVector __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef float Eight __attribute__((vector_size(32)));
typedef float UnalignedEight __attribute__((vector_size(32), aligned(4), may_alias));

LOCKSTEP_INLINE int64_t minimum(int64_t a, int64_t b) { return a < b ? a : b; }
LOCKSTEP_INLINE int64_t maximum(int64_t a, int64_t b) { return a > b ? a : b; }

LOCKSTEP_INLINE Vector load(const float* p) { return *reinterpret_cast<const UnalignedVector*>(p); }
LOCKSTEP_INLINE void store(float* p, Vector v) { *reinterpret_cast<UnalignedVector*>(p) = v; }

// The first n lanes: n in [1, kLanes].
#if LOCKSTEP_LANES == 16 && defined(__AVX512F__)
using Mask = __mmask16;
LOCKSTEP_INLINE Mask first_lanes(int64_t n) { return Mask((1u << n) - 1); }
LOCKSTEP_INLINE Vector load(const float* p, Mask mask) { return Vector(_mm512_maskz_loadu_ps(mask, p)); }
LOCKSTEP_INLINE void store(float* p, Vector v, Mask mask) { _mm512_mask_storeu_ps(p, mask, __m512(v)); }
LOCKSTEP_INLINE Vector broadcast(float f) { return Vector(_mm512_set1_ps(f)); }
#elif LOCKSTEP_LANES == 8 && defined(__AVX2__)
using Mask = __m256i;
LOCKSTEP_INLINE Mask first_lanes(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(int(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
LOCKSTEP_INLINE Vector load(const float* p, Mask mask) { return Vector(_mm256_maskload_ps(p, mask)); }
LOCKSTEP_INLINE void store(float* p, Vector v, Mask mask) { _mm256_maskstore_ps(p, mask, __m256(v)); }
LOCKSTEP_INLINE Vector broadcast(float f) { return Vector(_mm256_set1_ps(f)); }
#else
using Mask = int64_t;
LOCKSTEP_INLINE Mask first_lanes(int64_t n) { return n; }
LOCKSTEP_INLINE Vector load(const float* p, Mask n) {
  Vector v{};
  for (int64_t i = 0; i < n; i++) v[i] = p[i];
  return v;
}
LOCKSTEP_INLINE void store(float* p, Vector v, Mask n) {
  for (int64_t i = 0; i < n; i++) p[i] = v[i];
}
LOCKSTEP_INLINE Vector broadcast(float f) { return f - Vector{}; }
#endif

// --- rows: forward, and backward of the input ---

constexpr int kRowVectors = 2;  // at most, of lanes at a time
constexpr int kMaxPixels[] = {0, kRegisters == 32 ? 14 : 12, kRegisters == 32 ? 14 : 6};  // by vectors

// Places at 0, step, 2 step, ... from a moving base. Spelled as base + odd multiple * power of two, which is
// an address of x86, they take one register per odd multiple; left to itself the compiler keeps a pointer per
// place and spills them.
template <int COUNT>
struct Places {
  int64_t odd[COUNT / 2 + 1];  // odd multiples of the step, in bytes

  LOCKSTEP_INLINE explicit Places(int64_t step) {
    LOCKSTEP_UNROLL for (int i = 0; i < COUNT / 2; i++) odd[i] = (2 * i + 1) * step * int64_t(sizeof(float));
  }
  // To be called in each turn of the loop: hides that the multiples are related and do not change, or
  // products of them would be kept in registers after all.
  LOCKSTEP_INLINE void renew() { LOCKSTEP_UNROLL for (int i = 0; i < COUNT / 2; i++) asm("" : "+r"(odd[i])); }
  LOCKSTEP_INLINE float at(const float* base, int i) const {
    if (i == 0) return *base;
    const int shift = __builtin_ctz(unsigned(i));
    return *reinterpret_cast<const float*>(reinterpret_cast<const char*>(base) +
                                           (odd[(i >> shift) / 2] << shift));
  }
};

// PIXELS pixels from `first` on, VECTORS vectors of lanes from `lane` on; the last one as `mask` says.
template <int PIXELS, int VECTORS>
LOCKSTEP_INLINE void row_block(const DirectRow& a, int64_t first, int64_t lane, Mask mask) {
  Vector sums[PIXELS][VECTORS];
  LOCKSTEP_UNROLL for (int v = 0; v < VECTORS; v++) {
    const Vector start = a.bias ? load(a.bias + lane + v * kLanes) : Vector{};
    LOCKSTEP_UNROLL for (int i = 0; i < PIXELS; i++) sums[i][v] = start;
  }
  Places<PIXELS> places(a.pixel_step);
  const float* w = a.w + lane;
  for (int64_t r = 0; r < a.rows; r++) {
    const float* x = a.x + r * a.row_step + first * a.pixel_step;
    for (const float* end = x + a.inner; x < end; x++, w += a.w_step) {
      places.renew();
      Vector weights[VECTORS];
      LOCKSTEP_UNROLL for (int v = 0; v < VECTORS; v++) weights[v] = load(w + v * kLanes);
      LOCKSTEP_UNROLL for (int i = 0; i < PIXELS; i++) {
        const Vector value = broadcast(places.at(x, i));
        LOCKSTEP_UNROLL for (int v = 0; v < VECTORS; v++) sums[i][v] += value * weights[v];
      }
    }
  }
  LOCKSTEP_UNROLL for (int i = 0; i < PIXELS; i++) {
    float* y = a.y + (first + i) * a.y_step + lane;
    LOCKSTEP_UNROLL for (int v = 0; v < VECTORS; v++) {
      Vector sum = sums[i][v];
      if (a.relu) sum = sum < Vector{} ? Vector{} : sum;
      if (v + 1 < VECTORS) store(y + v * kLanes, sum);
      else store(y + v * kLanes, sum, mask);
    }
  }
}

// The last block overlaps the one before: the same values are written twice.
template <int PIXELS, int VECTORS>
void row_of_blocks(const DirectRow& a, int64_t lane, Mask mask) {
  for (int64_t first = 0; first < a.pixels; first += PIXELS)
    row_block<PIXELS, VECTORS>(a, minimum(first, a.pixels - PIXELS), lane, mask);
}

// Calls row_of_blocks with `pixels` as PIXELS.
template <int VECTORS, int PIXELS = kMaxPixels[VECTORS]>
void row_with(int64_t pixels, const DirectRow& a, int64_t lane, Mask mask) {
  if constexpr (PIXELS >= 1) {
    if (pixels == PIXELS) row_of_blocks<PIXELS, VECTORS>(a, lane, mask);
    else row_with<VECTORS, PIXELS - 1>(pixels, a, lane, mask);
  }
}

template <int VECTORS>
void row_of(const DirectRow& a, int64_t lane) {
  const int64_t blocks = (a.pixels + kMaxPixels[VECTORS] - 1) / kMaxPixels[VECTORS];
  const int64_t in_last = minimum(a.lanes - lane - (VECTORS - 1) * kLanes, kLanes);
  row_with<VECTORS>((a.pixels + blocks - 1) / blocks, a, lane, first_lanes(in_last));
}

void row(const DirectRow& a) {
  int64_t lane = 0;
  for (; lane + kLanes < a.lanes; lane += kRowVectors * kLanes) row_of<kRowVectors>(a, lane);
  if (lane < a.lanes) row_of<1>(a, lane);
}

// --- weight gradient ---

constexpr int kMaxTaps[] = {0, kRegisters == 32 ? 16 : 12,
                            kRegisters == 32 ? 9 : 6};  // places in the kernel, by vectors
constexpr int kMaxTapRows = 3;

template <int ROWS, int INNER, int VECTORS>
void taps_block(const DirectWeightGradient& a, int64_t r, int64_t j, int64_t k, Mask mask) {
  Vector sums[ROWS][INNER][VECTORS];
  float* out = a.sums + (r * a.inner + j) * a.sum_step + k;
  LOCKSTEP_UNROLL for (int i = 0; i < ROWS; i++) {
    LOCKSTEP_UNROLL for (int t = 0; t < INNER; t++) {
      LOCKSTEP_UNROLL for (int v = 0; v < VECTORS; v++) sums[i][t][v] =
          load(out + (i * a.inner + t) * a.sum_step + v * kLanes);
    }
  }
  for (int64_t p = 0; p < a.P; p++) {
    const float* x = a.x + (p + r) * a.row_step + j;
    const float* dy = a.dy + p * a.Q * a.filters + k;
    for (int64_t q = 0; q < a.Q; q++, x += a.channels, dy += a.filters) {
      Vector gradient[VECTORS];
      LOCKSTEP_UNROLL for (int v = 0; v < VECTORS; v++) gradient[v] =
          v + 1 < VECTORS ? load(dy + v * kLanes) : load(dy + v * kLanes, mask);
      LOCKSTEP_UNROLL for (int i = 0; i < ROWS; i++) {
        LOCKSTEP_UNROLL for (int t = 0; t < INNER; t++) {
          const Vector value = broadcast(x[i * a.row_step + t]);
          LOCKSTEP_UNROLL for (int v = 0; v < VECTORS; v++) sums[i][t][v] += value * gradient[v];
        }
      }
    }
  }
  LOCKSTEP_UNROLL for (int i = 0; i < ROWS; i++) {
    LOCKSTEP_UNROLL for (int t = 0; t < INNER; t++) {
      LOCKSTEP_UNROLL for (int v = 0; v < VECTORS; v++)
          store(out + (i * a.inner + t) * a.sum_step + v * kLanes, sums[i][t][v]);
    }
  }
}

// Calls taps_block with `inner` as INNER.
template <int ROWS, int VECTORS, int INNER = kMaxTaps[VECTORS] / ROWS>
void taps_with(int64_t inner, const DirectWeightGradient& a, int64_t r, int64_t j, int64_t k, Mask mask) {
  if constexpr (INNER >= 1) {
    if (inner == INNER) taps_block<ROWS, INNER, VECTORS>(a, r, j, k, mask);
    else taps_with<ROWS, VECTORS, INNER - 1>(inner, a, r, j, k, mask);
  }
}

// Whole rows of the kernel, several at once, if they are short; pieces of a row otherwise.
template <int VECTORS>
void taps_of(const DirectWeightGradient& a, int64_t k) {
  const Mask mask = first_lanes(minimum(a.filters - k - (VECTORS - 1) * kLanes, kLanes));
  constexpr int64_t kTaps = kMaxTaps[VECTORS];
  const int64_t rows = minimum(maximum(kTaps / a.inner, 1), kMaxTapRows);
  const int64_t pieces = (a.inner + kTaps - 1) / kTaps, piece = (a.inner + pieces - 1) / pieces;
  for (int64_t r = 0; r < a.rows; r += rows)
    for (int64_t j = 0; j < a.inner; j += piece) {
      const int64_t inner = minimum(piece, a.inner - j);
      switch (minimum(rows, a.rows - r)) {
        case 1: taps_with<1, VECTORS>(inner, a, r, j, k, mask); break;
        case 2: taps_with<2, VECTORS>(inner, a, r, j, k, mask); break;
        default: taps_with<3, VECTORS>(inner, a, r, j, k, mask); break;
      }
    }
}

void weight_gradient(const DirectWeightGradient& a) {
  int64_t k = 0;
  for (; k + kLanes < a.filters; k += 2 * kLanes) taps_of<2>(a, k);
  if (k < a.filters) taps_of<1>(a, k);
}

// --- gather ---

void gather(const float* sums, int64_t sum_step, int64_t outputs, int64_t kernel, int64_t left,
            int64_t channels, int64_t pixels, float* dx) {
#if defined(__AVX2__)
  const __m256i mask =
      _mm256_cmpgt_epi32(_mm256_set1_epi32(int(channels)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
#endif
  for (int64_t w = 0; w < pixels; w++, dx += channels) {
    const int64_t at = w + left;  // in the padded image
    const int64_t begin = maximum(0, at - outputs + 1), end = minimum(kernel, at + 1);
    Eight sum{};
    for (int64_t s = begin; s < end; s++)
      sum += *reinterpret_cast<const UnalignedEight*>(sums + (at - s) * sum_step + s * channels);
#if defined(__AVX2__)
    _mm256_maskstore_ps(dx, mask, __m256(sum));
#else
    for (int64_t c = 0; c < channels; c++) dx[c] = sum[c];
#endif
  }
}

constexpr DirectKernels kKernels = {kLanes, row, weight_gradient, gather};

}  // namespace
}  // namespace lockstep::cpu
