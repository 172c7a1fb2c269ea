// Quotients by a reciprocal have the bits of a division.
#include "ops/codec/host_device.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace narrowcast::codec {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Expects the division's bits where the class promises them; elsewhere it expects the same result after rounding and
// clamping.
void expect_as_division(float x, float divisor) {
  const float expected = x / divisor;
  const float actual = ReciprocalDivision(divisor).quotient(x);
  const float magnitude = std::fabs(expected);
  if (expected != expected) {
    ASSERT_NE(actual, actual) << std::hexfloat << x << " / " << divisor;
  } else if (magnitude >= 0.25F && magnitude <= 0x1p20F) {
    ASSERT_EQ(float_bits(actual), float_bits(expected)) << std::hexfloat << x << " / " << divisor;
  } else if (magnitude < 0.25F) {
    ASSERT_LT(std::fabs(actual), 0.5F) << std::hexfloat << x << " / " << divisor;
  } else {
    ASSERT_GT(actual * std::copysign(1.0F, expected), 0x1p19F) << std::hexfloat << x << " / " << divisor;
  }
}

float random_float(std::mt19937& bits, int least_exponent, int greatest_exponent) {
  std::uniform_int_distribution<int> exponents(least_exponent, greatest_exponent);
  return std::ldexp(1.0F + static_cast<float>(bits() >> 9) * 0x1p-23F, exponents(bits));
}

TEST(ReciprocalDivision, HasTheBitsOfDivision) {
  std::mt19937 bits(1);
  for (int i = 0; i < 3000000; ++i) {
    const float divisor = random_float(bits, -60, 59);
    expect_as_division(random_float(bits, -3, 21) * divisor, divisor);
  }
}

// Numerators next to an odd multiple of half the divisor: their quotients round to different integers.
TEST(ReciprocalDivision, HasTheBitsOfDivisionBesideHalves) {
  std::mt19937 bits(2);
  for (int i = 0; i < 20000; ++i) {
    const float divisor = random_float(bits, -60, 59);
    const float near_half = divisor * (static_cast<float>(i % 512) - 255.5F);
    for (const float towards : {-kInfinity, kInfinity}) {
      float x = near_half;
      for (int step = 0; step < 4; ++step, x = std::nextafter(x, towards)) expect_as_division(x, divisor);
    }
  }
}

TEST(ReciprocalDivision, HasTheBitsOfDivisionForExtremeSignificands) {
  for (const uint32_t divisor_tail : {0U, 1U, 2U, 0x3FFFFFU, 0x400000U, 0x7FFFFEU, 0x7FFFFFU}) {
    for (int exponent = -60; exponent < 60; exponent += 7) {
      const float divisor = std::ldexp(float_of_bits(0x3F800000U | divisor_tail), exponent);
      for (uint32_t tail = 0; tail < 0x800000U; tail += tail < 256 || tail > 0x7FFF00U ? 1 : 0x1FFU) {
        expect_as_division(std::ldexp(float_of_bits(0x3F800000U | tail), exponent + 5), divisor);
      }
    }
  }
}

TEST(ReciprocalDivision, TakesAnyNumerator) {
  for (const float divisor : {0x1p-60F, 0x1.fffffep-60F, 0x1p-23F, 0x1.818182p-7F, 3.0F, 0x1p60F}) {
    ASSERT_TRUE(ReciprocalDivision::is_moderate(divisor));
    for (const float x :
         {0.0F, 0x1p-149F, 0x1p-126F, 1e-30F, 1e30F, 3.4e38F, kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
      expect_as_division(x, divisor);
      expect_as_division(-x, divisor);
    }
  }
}

TEST(ReciprocalDivision, RefusesOtherDivisors) {
  for (const float divisor : {0.0F, -1.0F, 0x1p-61F, 0x1p61F, kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_FALSE(ReciprocalDivision::is_moderate(divisor)) << divisor;
  }
}

}  // namespace
}  // namespace narrowcast::codec
