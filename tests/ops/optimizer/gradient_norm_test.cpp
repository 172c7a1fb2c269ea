// Norms of gradients: equal bits for every division and order, and their error.
#include "ops/cpu/optimizer/gradient_norm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/ops/affine_uint8/reference.h"
#include "tests/ops/codec/instruction_sets.h"
#include "tests/ops/optimizer/step_arrays.h"

namespace narrowcast::cpu {
namespace {

using test::Floats;
using test::instruction_sets;
using test::random_floats;
using test::UseInstructionSet;
using test::UseThreads;

constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kSmallest = std::numeric_limits<float>::denorm_min();
constexpr float kInfinite = std::numeric_limits<float>::infinity();
constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

int64_t size_of(const Floats& values) { return static_cast<int64_t>(values.size()); }

double norm_of(const std::vector<GradientPiece>& pieces) {
  const float greatest = greatest_magnitude(pieces);
  return norm_of_sum(sum_of_squares(pieces, greatest), greatest);
}

double norm_of(const Floats& values) { return norm_of({{values.data(), size_of(values)}}); }

// The norm in long double, whose additions have an error of at most n * 2^-64.
double exact_norm(const Floats& values) {
  long double sum = 0;
  for (const float value : values) sum += static_cast<long double>(value) * value;
  return static_cast<double>(std::sqrt(sum));
}

// The bound of gradient_norm.h; the norm in long double adds little.
double error_bound(const Floats& values) { return exact_norm(values) * (size_of(values) + 1) * 0x1.01p-52; }

// Magnitudes over 40 powers of two.
Floats wide_floats(int64_t n, float scale) {
  Floats values = random_floats(n, scale);
  for (size_t i = 0; i < values.size(); ++i) values[i] *= std::ldexp(1.0F, -static_cast<int>(i * 7 % 40));
  return values;
}

std::vector<std::pair<std::string, Floats>> inputs() {
  Floats small_and_one(100000, 0x1p-26F);  // Each square is half a unit, which rounds to 0.
  small_and_one[777] = 1;
  return {{"random", random_floats(100003)},
          {"wide", wide_floats(100003, 1)},
          {"squares overflow float32", wide_floats(10007, 1e37F)},
          {"squares underflow float32", wide_floats(10007, 1e-30F)},
          {"largest", Floats(70001, kLargest)},
          {"smallest", Floats(70001, -kSmallest)},
          {"subnormal", random_floats(1001, 1e-39F)},
          {"small and one", small_and_one},
          {"one", {-3}},
          {"ones", Floats(1 << 17, 1)}};
}

TEST(OptimizerGradientNorm, HasTheDocumentedError) {
  for (const auto& [name, values] : inputs()) {
    for (const int64_t target : instruction_sets()) {
      const UseInstructionSet use(target);
      EXPECT_NEAR(norm_of(values), exact_norm(values), error_bound(values)) << name;
    }
  }
}

TEST(OptimizerGradientNorm, IsExactForSquaresThatAreMultiplesOfTheUnit) {
  EXPECT_EQ(norm_of(Floats(1 << 16, 3)), 3 * 256);
  EXPECT_EQ(norm_of({3, 4}), 5);
  EXPECT_EQ(norm_of(Floats(1 << 16, kLargest)), static_cast<double>(kLargest) * 256);
  EXPECT_EQ(norm_of(Floats(1 << 16, kSmallest)), static_cast<double>(kSmallest) * 256);
}

// Squares, rounded by the library's rounding to integers.
TEST(OptimizerGradientNorm, SumsRoundedSquares) {
  for (const auto& [name, values] : inputs()) {
    const float greatest = greatest_magnitude({{values.data(), size_of(values)}});
    const double unit = square_unit(greatest);
    SquareSum expected;
    for (const float value : values) {
      const double square = static_cast<double>(value) * static_cast<double>(value);
      expected.add(static_cast<uint64_t>(std::nearbyint(square / unit)));
    }
    for (const int64_t target : instruction_sets()) {
      const UseInstructionSet use(target);
      EXPECT_EQ(sum_squares(values.data(), size_of(values), unit), expected) << name;
    }
  }
}

// In vectors, at the ends, and in places without alignment.
TEST(OptimizerGradientNorm, HasEqualBitsForEverySizeAndInstructionSet) {
  const Floats values = wide_floats(200, 1);
  const double unit = square_unit(8);
  for (int64_t size = 0; size < 70; ++size) {
    for (int64_t begin = 0; begin < 9; ++begin) {
      SquareSum expected;
      for (int64_t i = begin; i < begin + size; ++i) expected.add(sum_squares(&values[i], 1, unit));
      for (const int64_t target : instruction_sets()) {
        const UseInstructionSet use(target);
        EXPECT_EQ(sum_squares(values.data() + begin, size, unit), expected) << begin << " " << size;
      }
    }
  }
  EXPECT_EQ(sum_squares(nullptr, 0, unit), SquareSum());
}

std::vector<GradientPiece> cut(const Floats& values, const std::vector<int64_t>& sizes) {
  std::vector<GradientPiece> pieces;
  int64_t begin = 0;
  for (size_t i = 0; begin < size_of(values); ++i) {
    const int64_t n = std::min(sizes[i % sizes.size()], size_of(values) - begin);
    pieces.push_back({values.data() + begin, n});
    begin += n;
  }
  return pieces;
}

TEST(OptimizerGradientNorm, HasEqualBitsForEveryDivisionOrderAndNumberOfThreads) {
  std::mt19937 random(1);
  for (const auto& [name, values] : inputs()) {
    const double expected = norm_of(values);
    Floats shuffled = values;
    for (const int threads : {1, 2, 3, 7}) {
      const UseThreads use(threads);
      for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1 << 30}, {1}, {40000, 3}, {1, 0, 5, 1001}}) {
        SCOPED_TRACE(::testing::Message() << name << ", " << threads << " threads, pieces of " << sizes.front());
        EXPECT_EQ(norm_of(cut(values, sizes)), expected);
        EXPECT_EQ(norm_of(cut(shuffled, sizes)), expected);
        std::shuffle(shuffled.begin(), shuffled.end(), random);
      }
    }
  }
}

// As ranks do: the greatest magnitude first, then sums of parts, which are added in any order.
TEST(OptimizerGradientNorm, OfRanksIsCombinedFromTheirParts) {
  const Floats values = wide_floats(10007, 1);
  for (const int64_t part : {5, 1024, 9999}) {
    const std::vector<GradientPiece> parts = cut(values, {part});
    float greatest = 0;
    for (const GradientPiece& piece : parts) greatest = larger_magnitude(greatest_magnitude({piece}), greatest);
    SquareSum forwards;
    SquareSum backwards;
    for (size_t i = 0; i < parts.size(); ++i) {
      forwards.add(sum_of_squares({parts[i]}, greatest));
      backwards.add(sum_of_squares({parts[parts.size() - 1 - i]}, greatest));
    }
    EXPECT_EQ(forwards, backwards);
    EXPECT_EQ(norm_of_sum(forwards, greatest), norm_of(values));
  }
}

TEST(SquareSumTest, CarriesIntoTheUpperHalf) {
  SquareSum sum{.low = ~uint64_t{0}, .high = 1};
  sum.add(1);
  EXPECT_EQ(sum, (SquareSum{.low = 0, .high = 2}));
  sum.add(SquareSum{.low = 5, .high = 7});
  EXPECT_EQ(sum, (SquareSum{.low = 5, .high = 9}));
  const SquareSum half{.low = uint64_t{1} << 63, .high = 0};
  sum.add(half);
  sum.add(half);
  EXPECT_EQ(sum, (SquareSum{.low = 5, .high = 10}));
  // With unit 2^-50, 10 * 2^64 units are 10 * 2^14.
  EXPECT_EQ(norm_of_sum({.low = 0, .high = 10}, 1), std::sqrt(10 * 0x1p14));
}

TEST(SquareUnit, FollowsFromThePowerOfTwo) {
  EXPECT_EQ(square_unit(1), 0x1p-50);
  EXPECT_EQ(square_unit(1.99F), 0x1p-50);
  EXPECT_EQ(square_unit(2), 0x1p-48);
  EXPECT_EQ(square_unit(kLargest), std::ldexp(1.0, 254 - 50));
  EXPECT_EQ(square_unit(kSmallest), std::ldexp(1.0, -298 - 50));
}

TEST(OptimizerGradientNorm, OfNothingAndOfZerosIsZero) {
  EXPECT_EQ(norm_of(std::vector<GradientPiece>()), 0);
  EXPECT_EQ(norm_of(Floats()), 0);
  EXPECT_EQ(norm_of({0, -0.0F, 0}), 0);
}

// In any place, on any thread.
TEST(OptimizerGradientNorm, ShowsNumbersThatAreNotFinite) {
  for (const int threads : {1, 3}) {
    const UseThreads use(threads);
    for (const size_t place : {size_t{0}, size_t{33}, size_t{50000}, size_t{99999}, size_t{100000}}) {
      Floats values = random_floats(100001);
      for (const float infinite : {kInfinite, -kInfinite}) {
        values[place] = infinite;
        EXPECT_EQ(norm_of(values), kInfinite) << place;
      }
      values[(place + 60000) % values.size()] = -kNotANumber;
      EXPECT_TRUE(std::isnan(norm_of(values))) << place;
    }
  }
  EXPECT_TRUE(std::isnan(larger_magnitude(kNotANumber, 1)));
  EXPECT_TRUE(std::isnan(larger_magnitude(kInfinite, kNotANumber)));
  EXPECT_EQ(larger_magnitude(2, 3), 3);
  EXPECT_EQ(larger_magnitude(3, 2), 3);
}

}  // namespace
}  // namespace narrowcast::cpu
