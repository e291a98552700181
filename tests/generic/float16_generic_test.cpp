// The conversions that processors without F16C run. Compiled without F16C, as a program of its own, so that
// the inline functions of dtype.h are not mixed with those of the library.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/runtime/dtype.h"

#ifdef __F16C__
#error "this test must be compiled without F16C"
#endif

namespace lockstep {
namespace {

// The value of binary16 `bits` by the definition of IEEE 754.
double value_of(uint16_t bits) {
  int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31) return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * INFINITY;
  return sign * (exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24));
}

TEST(Float16Generic, every_value_converts_exactly_and_back) {
  for (uint32_t bits = 0; bits < 65536; bits++) {
    double expected = value_of(uint16_t(bits));
    float value = float16::to_float(uint16_t(bits));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_TRUE(std::isnan(value_of(float16::from_float(value)))) << bits;
    } else {
      EXPECT_EQ(value, expected) << bits;
      EXPECT_EQ(float16::from_float(value), bits);
    }
  }
}

TEST(Float16Generic, rounds_to_nearest_even) {
  for (uint32_t bits = 0; bits < 0x7bff;
       bits++) {  // every pair of neighbours, up to the largest finite value
    double low = value_of(uint16_t(bits)), high = value_of(uint16_t(bits + 1)), middle = (low + high) / 2;
    EXPECT_EQ(float16::from_float(float(middle)), bits % 2 == 0 ? bits : bits + 1);
    EXPECT_EQ(float16::from_float(std::nextafter(float(middle), 0.0f)), bits);
    EXPECT_EQ(float16::from_float(std::nextafter(float(middle), INFINITY)), bits + 1);
    EXPECT_EQ(float16::from_float(-std::nextafter(float(middle), 0.0f)), bits | 0x8000);
  }
  EXPECT_EQ(float16::from_float(65519.99f), 0x7bff);
  EXPECT_EQ(float16::from_float(65520.0f), 0x7c00);
  EXPECT_EQ(float16::from_float(std::numeric_limits<float>::max()), 0x7c00);
  EXPECT_EQ(float16::from_float(-INFINITY), 0xfc00);
  EXPECT_EQ(float16::from_float(1e-30f), 0);
}

TEST(Float16Generic, bfloat16_rounds_to_nearest_even_and_keeps_nan) {
  EXPECT_EQ(bfloat16::from_float(1.00390625f), 0x3f80);  // half way between 1 and the next: to even
  EXPECT_EQ(bfloat16::from_float(1.01171875f), 0x3f82);  // half way, odd below
  EXPECT_EQ(bfloat16::from_float(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_TRUE(std::isnan(float(bfloat16(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace lockstep
