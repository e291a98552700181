#include "lockstep/ops/math.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>

namespace lockstep {
namespace {

// Distance from `got` to the exact value `want` in units of the last place of float.
double ulps(float got, double want) {
  if (double(got) == want || (std::isinf(got) && std::abs(want) > FLT_MAX && (got > 0) == (want > 0)))
    return 0;
  int exponent;
  std::frexp(want, &exponent);
  return std::abs(double(got) - want) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

// The largest error over [low, high]: a grid, and floats of every exponent.
template <class F, class G>
double worst(F f, G exact, float low, float high) {
  double worst = 0;
  auto probe = [&](float x) {
    if (low <= x && x <= high) worst = std::max(worst, ulps(f(x), exact(double(x))));
  };
  const int kSteps = 200000;
  for (int i = 0; i <= kSteps; i++) probe(low + (high - low) * (float(i) / kSteps));
  for (uint32_t bits = 1; bits < 0x7f800000u; bits += 20011) {
    probe(std::bit_cast<float>(bits));
    probe(std::bit_cast<float>(bits | 0x80000000u));
  }
  return worst;
}

TEST(Math, FloatFunctionsAreWithinTwoUlp) {
  EXPECT_LE(worst([](float x) { return math::exp(x); }, [](double x) { return std::exp(x); }, -110, 100), 2);
  EXPECT_LE(worst([](float x) { return math::log(x); }, [](double x) { return std::log(x); }, 0, FLT_MAX), 2);
  EXPECT_LE(worst([](float x) { return math::log(x); }, [](double x) { return std::log(x); }, 0.25f, 4), 2);
  EXPECT_LE(worst([](float x) { return math::tanh(x); }, [](double x) { return std::tanh(x); }, -12, 12), 2);
  EXPECT_LE(worst([](float x) { return math::erf(x); }, [](double x) { return std::erf(x); }, -6, 6), 2);
}

TEST(Math, SigmoidIsWithinThreeUlp) {
  EXPECT_LE(worst([](float x) { return math::sigmoid(x); }, [](double x) { return 1 / (1 + std::exp(-x)); },
                  -87, 87),
            3);
}

TEST(Math, SpecialValues) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(math::exp(inf), inf);
  EXPECT_EQ(math::exp(-inf), 0);
  EXPECT_EQ(math::exp(1000.0f), inf);
  EXPECT_EQ(math::exp(0.0f), 1);
  EXPECT_EQ(math::log(inf), inf);
  EXPECT_EQ(math::log(0.0f), -inf);
  EXPECT_EQ(math::log(1.0f), 0);
  EXPECT_TRUE(std::isnan(math::log(-1.0f)));
  EXPECT_EQ(math::tanh(inf), 1);
  EXPECT_EQ(math::tanh(-inf), -1);
  EXPECT_EQ(math::erf(inf), 1);
  EXPECT_EQ(math::erf(-inf), -1);
  EXPECT_EQ(math::sigmoid(inf), 1);
  EXPECT_EQ(math::sigmoid(-inf), 0);
  for (float y : {math::exp(nan), math::log(nan), math::tanh(nan), math::erf(nan), math::sigmoid(nan)})
    EXPECT_TRUE(std::isnan(y));
}

}  // namespace
}  // namespace lockstep
