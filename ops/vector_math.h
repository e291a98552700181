// exp that the compiler can vectorise: branch-free, so that one call a lane becomes one instruction stream
// for all lanes, and an element's bits do not depend on where in a row it stands. (libm's expf is a call per
// element.)
//
// exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln 2 / 2, exp(r) by its Taylor polynomial of degree 7
// (truncation below 0.1 ulp; the whole within 1.5 ulp). exp(-inf) = 0, exp(inf) = inf, NaN stays NaN,
// subnormal results are kept.
//   Muller, Elementary Functions, chapter 11 (Cody & Waite's reduction).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace lockstep::cpu {

inline double vector_exp(double x) { return std::exp(x); }

inline float vector_exp(float x) {
  constexpr float kRound = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  const float shifted = x * 0x1.715476p0f + kRound, n = shifted - kRound;
  const float r =
      (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;  // ln 2 in two parts, the first short: n * it is exact
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // 2^n in two factors, as n may lie outside the exponents of normal numbers.
  const uint32_t bits = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRound);
  const uint32_t half = uint32_t(int32_t(bits) >> 1);
  p = p * std::bit_cast<float>((half + 127u) << 23) * std::bit_cast<float>((bits - half + 127u) << 23);
  // Selected last: a clamp of x makes GCC split the loop's body by cases.
  p = x < -104.0f ? 0.0f : p;
  return x > 89.0f ? std::numeric_limits<float>::infinity() : p;
}

}  // namespace lockstep::cpu
