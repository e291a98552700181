// Scalar functions of the elementwise ops, for float and double, on the host and in device code.
//
// The float versions on the host are branch-free polynomials that the compiler vectorises: at most 2 ulp from
// the exact value (tests/ops/math_test.cpp measures it). Reductions of the argument are those of Cody & Waite
// 1980; the coefficients are weighted minimax fits of the function named beside them. Double and device code
// use the library.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "lockstep/runtime/kernel.h"

namespace lockstep::math {

LOCKSTEP_HD inline double exp(double x) { return ::exp(x); }
LOCKSTEP_HD inline double log(double x) { return ::log(x); }
LOCKSTEP_HD inline double tanh(double x) { return ::tanh(x); }
LOCKSTEP_HD inline double erf(double x) { return ::erf(x); }
LOCKSTEP_HD inline double sqrt(double x) { return ::sqrt(x); }
LOCKSTEP_HD inline double pow(double x, double y) { return ::pow(x, y); }
LOCKSTEP_HD inline float sqrt(float x) { return ::sqrtf(x); }
LOCKSTEP_HD inline float pow(float x, float y) { return ::powf(x, y); }

#ifdef __CUDA_ARCH__

__device__ inline float exp(float x) { return ::expf(x); }
__device__ inline float log(float x) { return ::logf(x); }
__device__ inline float tanh(float x) { return ::tanhf(x); }
__device__ inline float erf(float x) { return ::erff(x); }

#else

// x = n ln 2 + r with |r| <= ln 2 / 2;  e^x = 2^n e^r.
inline float exp(float x) {
  x = x > 89.0f ? 89.0f : x;  // 2^128 and 2^-150 are out of range already; a NaN passes
  x = x < -104.0f ? -104.0f : x;
  const float kRound = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  float shifted = x * 1.44269504f + kRound, n = shifted - kRound;
  float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  // (e^r - 1 - r) / r^2
  float p =
      0.499999931f + r * (0.166665148f + r * (0.0416684568f + r * (0.00836941883f + r * 0.00138131445f)));
  float y = 1 + (r + r * r * p);
  // 2^n as two factors: results near the ends of the range are rounded or overflow as they should.
  uint32_t power = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRound);
  uint32_t half = uint32_t(int32_t(power) >> 1);
  return y * std::bit_cast<float>((half + 127) << 23) * std::bit_cast<float>((power - half + 127) << 23);
}

// x = 2^e (1 + f) with 1 + f in [sqrt(1/2), sqrt(2));  log(1 + f) = 2 atanh(s), s = f / (2 + f).
inline float log(float x) {
  const uint32_t kSqrtHalf = 0x3f3504f3u;
  bool subnormal = x < 0x1p-126f;
  uint32_t bits = std::bit_cast<uint32_t>(subnormal ? x * 0x1p23f : x) + (0x3f800000u - kSqrtHalf);
  float e = float(int32_t(bits >> 23) - 127) - (subnormal ? 23.0f : 0.0f);
  float f = std::bit_cast<float>((bits & 0x007fffffu) + kSqrtHalf) - 1;
  float s = f / (2 + f), z = s * s, half_square = 0.5f * f * f;
  // 2 atanh(s) / s - 2
  float r = z * (0.666666656f + z * (0.400003459f + z * (0.285365803f + z * 0.235967846f)));
  float y = e * 0.693359375f + (f - (half_square - (s * (half_square + r) - e * 2.12194440e-4f)));
  y = x > std::numeric_limits<float>::max() ? x : y;
  float below = x == 0 ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  return x > 0 ? y : below;
}

inline float tanh(float x) {
  float magnitude = std::abs(x), z = x * x;
  // (tanh(x) / x - 1) / x^2
  float p =
      -0.333332839f + z * (0.133314913f + z * (-0.0537434981f + z * (0.0206505874f - z * 0.00571704511f)));
  float large = std::copysign(1 - 2 / (exp(2 * magnitude) + 1), x);
  return magnitude < 0.625f ? x + x * z * p : (x == x ? large : x);
}

inline float erf(float x) {
  float magnitude = std::abs(x), z = x * x;
  // erf(x) / x - 1
  float p = 0.12837916f +
            z * (-0.376126038f +
                 z * (0.112831428f + z * (-0.0268221086f + z * (0.00508743999f - z * 0.000654959749f))));
  float m = magnitude < 4.0f ? magnitude : 4.0f;
  // log(erfc(m))
  float q =
      -0.0000568485354f +
      m * (-1.12827135f +
           m * (-0.63614212f +
                m * (-0.104876387f + m * (0.0226973744f + m * (-0.00316488978f + m * 0.000208699275f)))));
  float large = std::copysign(1 - exp(q), x);
  return magnitude < 0.8f ? x + x * p : (x == x ? large : x);
}

#endif

template <class T>
LOCKSTEP_HD T sigmoid(T x) {
  return 1 / (1 + exp(-x));
}

}  // namespace lockstep::math
