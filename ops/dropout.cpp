#include "lockstep/ops/dropout.h"

#include <algorithm>
#include <cmath>

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/parallel.h"
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace lockstep {

Tensor dropout(const Tensor& input, double p, bool training) {
  LOCKSTEP_CHECK(is_floating(input.dtype()), "[dropout] expected a floating-point dtype, got ",
                 input.dtype());
  LOCKSTEP_CHECK(p >= 0 && p <= 1, "[dropout] got p = ", p, ", expected a probability in [0, 1]");
  if (!training || p == 0) return input;
  Tensor x = input.contiguous(), y = empty_like(x), mask;
  if (needs_grad({x})) mask = empty({dropout_mask_bytes(x.numel())}, DType::uint8, x.device());
  RandomState start = x.device().is_meta() ? RandomState{} : generator().reserve(x.numel());
  LOCKSTEP_DISPATCH(current_stream(x.device()), dropout_forward, x, y, mask, p, start);
  return record("dropout", y, {x}, [mask, p](const Tensor& grad) -> Tensors {
    Tensor dy = grad.contiguous(), dx = empty_like(dy);
    LOCKSTEP_DISPATCH(current_stream(dy.device()), dropout_backward, dy, mask, p, dx);
    return {dx};
  });
}

namespace cpu {
namespace {

constexpr int kGroup = 64;  // elements whose keep bits share eight bytes
constexpr int kBlocks = kGroup / 4;
static_assert(kElementGrain % kGroup == 0, "a chunk must start at a group");

// The words of Philox blocks [first, first + kBlocks), in order. Each block is a chain of dependent
// multiplications, so sixteen run side by side; compilers do not find the 32x32->64 bit multiply of vectors
// in Philox::operator() by themselves.
inline void philox_words(const Philox& philox, uint64_t first, uint32_t* words) {
#ifdef __AVX2__
  constexpr int kVectors = kBlocks / 4;
  // One word of a block in the low half of each 64-bit lane; the high halves hold rubbish, which the multiply
  // ignores.
  __m256i x0[kVectors], x1[kVectors], x2[kVectors], x3[kVectors];
  for (int v = 0; v < kVectors; v++) {
    x0[v] = _mm256_add_epi64(_mm256_set1_epi64x(int64_t(first) + 4 * v), _mm256_set_epi64x(3, 2, 1, 0));
    x1[v] = _mm256_srli_epi64(x0[v], 32);
    x2[v] = x3[v] = _mm256_setzero_si256();
  }
  const __m256i factor_a = _mm256_set1_epi64x(0xD2511F53), factor_b = _mm256_set1_epi64x(0xCD9E8D57);
  uint32_t k0 = uint32_t(philox.seed), k1 = uint32_t(philox.seed >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; round++) {
    const __m256i key0 = _mm256_set1_epi64x(k0), key1 = _mm256_set1_epi64x(k1);
    for (int v = 0; v < kVectors; v++) {
      const __m256i a = _mm256_mul_epu32(x0[v], factor_a), b = _mm256_mul_epu32(x2[v], factor_b);
      x0[v] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(b, 32), x1[v]), key0);
      x1[v] = b;
      x2[v] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(a, 32), x3[v]), key1);
      x3[v] = a;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int v = 0; v < kVectors; v++) {
    const __m256i low =
        _mm256_blend_epi32(x0[v], _mm256_slli_epi64(x1[v], 32), 0xAA);  // words 0 and 1 of each block
    const __m256i high = _mm256_blend_epi32(x2[v], _mm256_slli_epi64(x3[v], 32), 0xAA);  // words 2 and 3
    const __m256i even = _mm256_unpacklo_epi64(low, high), odd = _mm256_unpackhi_epi64(low, high);
    __m256i* out = reinterpret_cast<__m256i*>(words + 16 * v);
    _mm256_storeu_si256(out, _mm256_permute2x128_si256(even, odd, 0x20));      // blocks 0 and 1
    _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(even, odd, 0x31));  // blocks 2 and 3
  }
#else
  for (int b = 0; b < kBlocks; b++) {
    const auto block = philox(first + uint64_t(b));
    std::copy(block.begin(), block.end(), words + 4 * b);
  }
#endif
}

// Calls body(element, length) for the groups of [begin, end); all but the last have kGroup elements.
template <class F>
inline void for_groups(int64_t begin, int64_t end, F&& body) {
  for (int64_t i = begin; i < end; i += kGroup) body(i, int(std::min<int64_t>(kGroup, end - i)));
}

// A kept element times 1 / (1 - p); with p = 1 nothing is kept.
template <class C>
C keep_scale(double p) {
  return p < 1 ? C(1 / (1 - p)) : C(0);
}

// y = x * scale where keep, else 0.
template <class T>
inline void apply(const T* x, const uint32_t* keep, Compute<T> scale, T* y, int length) {
#pragma omp simd
  for (int i = 0; i < length; i++) {
    const Compute<T> value = Compute<T>(x[i]) * scale;  // computed always: a branch would be taken at random
    store(y + i, keep[i] ? value : Compute<T>(0));
  }
}

}  // namespace

void dropout_forward(const Tensor& x, Tensor& y, Tensor& mask, double p, RandomState start, Stream) {
  // uniform_float(word) >= p, in whole numbers: k / 2^24 >= p if and only if k >= ceil(p * 2^24), since p *
  // 2^24 is exact.
  const uint32_t threshold = uint32_t(std::ceil(p * 0x1p24));
  uint8_t* masks = mask.defined() ? mask.data<uint8_t>() : nullptr;
  dispatch_float(x.dtype(), [&]<class T>() {
    const T* in = x.data<T>();
    T* out = y.data<T>();
    const Compute<T> scale = keep_scale<Compute<T>>(p);
    parallel_for(x.numel(), kElementGrain, [&](int64_t begin, int64_t end) {
      for_groups(begin, end, [&](int64_t i, int length) {
        uint32_t keep[kGroup];
        philox_words(Philox{start.seed}, start.offset + uint64_t(i) / 4, keep);
#pragma omp simd
        for (int e = 0; e < kGroup; e++) keep[e] = keep[e] >> 8 >= threshold;
        apply(in + i, keep, scale, out + i, length);
        if (!masks) return;
        uint32_t bits[8] = {};
        for (int k = 0; k < 8; k++)
          for (int j = 0; j < 8; j++) bits[j] |= keep[8 * k + j] << k;
        std::copy(bits, bits + 8, masks + i / 8);
      });
    });
  });
}

void dropout_backward(const Tensor& dy, const Tensor& mask, double p, Tensor& dx, Stream) {
  const uint8_t* masks = mask.data<uint8_t>();
  dispatch_float(dy.dtype(), [&]<class T>() {
    const T* in = dy.data<T>();
    T* out = dx.data<T>();
    const Compute<T> scale = keep_scale<Compute<T>>(p);
    parallel_for(dy.numel(), kElementGrain, [&](int64_t begin, int64_t end) {
      for_groups(begin, end, [&](int64_t i, int length) {
        uint32_t bits[8], keep[kGroup];
        std::copy(masks + i / 8, masks + i / 8 + 8, bits);
        for (int k = 0; k < 8; k++)
          for (int j = 0; j < 8; j++) keep[8 * k + j] = bits[j] >> k & 1;
        apply(in + i, keep, scale, out + i, length);
      });
    });
  });
}

}  // namespace cpu
}  // namespace lockstep
