// The sparse formats: which elements a block keeps, its levels, its size, and messages that no encoder writes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "ops/codec/sparse_top.h"
#include "tests/ops/codec/instruction_sets.h"
#include "tests/ops/wire_format/whole_messages.h"
#include "tests/ops/wire_format/wire_inputs.h"

namespace narrowcast {
namespace {

using codec::wire::kSparseBlock;
using test::Bytes;
using test::Floats;

class SparseFormats : public ::testing::TestWithParam<WireFormat> {
 protected:
  const WireFormat format_ = GetParam();
  const int per_mille_ = codec::wire::kept_per_mille(format_);

  Bytes encode(const Floats& x) const { return test::plain_encode(format_, x, test::kNearest); }
  Floats decode(const Bytes& bytes, int64_t n) const { return test::plain_decode(format_, bytes, n); }
  Floats round_trip(const Floats& x) const { return decode(encode(x), static_cast<int64_t>(x.size())); }
  int64_t kept_of(int64_t n) const { return std::max<int64_t>(1, n * per_mille_ / 1000); }
};

Floats normal_numbers(int64_t n) {
  at::manual_seed(4);
  const at::Tensor x = at::randn({n});
  return {x.const_data_ptr<float>(), x.const_data_ptr<float>() + n};
}

std::vector<size_t> nonzero_places(const Floats& x) {
  std::vector<size_t> places;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] != 0) places.push_back(i);
  }
  return places;
}

TEST_P(SparseFormats, HaveBlocksOfTheDocumentedSize) {
  const int64_t expected = format_ == WireFormat::kTop2P15 ? 81 : 146;
  EXPECT_EQ(test::size_of(format_, kSparseBlock), expected);
  EXPECT_EQ(test::size_of(format_, 10 * kSparseBlock), 10 * expected);
  EXPECT_EQ(test::size_of(format_, 0), 0);
  for (const int64_t n : {1, 2, 63, 64, 65, 66, 67, 1000, 4095}) {
    const auto layout = codec::wire::sparse_layout(per_mille_, n);
    EXPECT_EQ(test::size_of(format_, kSparseBlock + n), expected + layout.bytes) << n;
    EXPECT_EQ(layout.bytes, (layout.codes + 2 * layout.kept + 7) / 8 + 4) << n;
  }
}

// Places take at most a tenth more bits than the logarithm of the number of sets of places.
TEST_P(SparseFormats, PlacesTakeFewBits) {
  const auto layout = codec::wire::sparse_layout(per_mille_, kSparseBlock);
  const auto log_factorial = [](int64_t n) { return std::lgamma(static_cast<double>(n) + 1) / std::log(2.0); };
  const double entropy =
      log_factorial(kSparseBlock) - log_factorial(layout.kept) - log_factorial(kSparseBlock - layout.kept);
  EXPECT_LT(static_cast<double>(layout.codes), 1.1 * entropy);
  EXPECT_GT(static_cast<double>(layout.codes), entropy);
}

TEST_P(SparseFormats, KeepTheLargestElementsOfEachBlock) {
  const int64_t n = 2 * kSparseBlock + 777;
  const Floats x = normal_numbers(n);
  const Floats decoded = round_trip(x);
  for (int64_t begin = 0; begin < n; begin += kSparseBlock) {
    const int64_t count = std::min(kSparseBlock, n - begin);
    std::vector<size_t> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), static_cast<size_t>(begin));
    std::ranges::stable_sort(order, [&](size_t a, size_t b) { return std::abs(x[a]) > std::abs(x[b]); });
    order.resize(static_cast<size_t>(kept_of(count)));
    std::ranges::sort(order);
    const Floats block(decoded.begin() + begin, decoded.begin() + begin + count);
    std::vector<size_t> kept = nonzero_places(block);
    for (size_t& place : kept) place += static_cast<size_t>(begin);
    EXPECT_EQ(kept, order);
    for (const size_t place : kept) EXPECT_EQ(std::signbit(decoded[place]), std::signbit(x[place]));
  }
}

TEST_P(SparseFormats, KeepTheFirstOfEqualMagnitudes) {
  Floats x(3000, 1);
  for (size_t i = 0; i < x.size(); i += 2) x[i] = -1;
  x[2999] = 3;
  x[1500] = -0.5;
  std::vector<size_t> expected(static_cast<size_t>(kept_of(3000)));
  std::iota(expected.begin(), expected.end(), size_t{0});
  expected.back() = 2999;
  for (const int64_t target : test::all_instruction_sets()) {
    const test::UseInstructionSet use(target);
    Bytes bytes(encode(x).size());
    test::wire_encode<float>(format_, {x.data(), 3000}, test::kNearest, bytes.data());
    EXPECT_EQ(nonzero_places(decode(bytes, 3000)), expected);
    EXPECT_EQ(bytes, encode(x));
  }
}

// Each level is the mean of its magnitudes, so the squares of the decoded numbers are what the error lacks.
TEST_P(SparseFormats, DecodeToTheMeansOfTwoClasses) {
  const Floats x = normal_numbers(kSparseBlock);
  const Floats decoded = round_trip(x);
  double squares = 0;
  double decoded_squares = 0;
  double error = 0;
  std::vector<float> levels;
  for (size_t i = 0; i < x.size(); ++i) {
    squares += double{x[i]} * x[i];
    decoded_squares += double{decoded[i]} * decoded[i];
    error += (double{x[i]} - decoded[i]) * (double{x[i]} - decoded[i]);
    if (decoded[i] != 0) levels.push_back(std::abs(decoded[i]));
  }
  std::ranges::sort(levels);
  const auto [first, last] = std::ranges::unique(levels);
  EXPECT_EQ(first - levels.begin(), 2);
  EXPECT_NEAR(error, squares - decoded_squares, 0x1p-8 * decoded_squares) << "levels are rounded to bfloat16";
  EXPECT_GT(decoded_squares, 0.08 * squares);
}

TEST_P(SparseFormats, RoundLevelsToNumbers) {
  constexpr float kGreatest = std::numeric_limits<float>::max();
  EXPECT_EQ(round_trip({kGreatest}), (Floats{codec::float_of_bits(0x7F7F0000U)}));
  EXPECT_EQ(round_trip(Floats(200, -kGreatest))[0], codec::float_of_bits(0xFF7F0000U));
  EXPECT_EQ(round_trip({0x1p-100F, 0}), (Floats{0x1p-100F, 0}));
  EXPECT_EQ(round_trip({0x1.fcp-101F, 0}), (Floats{0, 0}));
}

TEST_P(SparseFormats, IgnoreSeeds) {
  const Floats x = normal_numbers(5000);
  EXPECT_EQ(test::plain_encode(format_, x, test::kStochastic), encode(x));
}

// Each damaged block is NaN, and no other.
TEST_P(SparseFormats, DamagedPlacesAreNan) {
  const int64_t n = kSparseBlock + 1000;
  const Floats x = normal_numbers(n);
  const Bytes message = encode(x);
  const auto expect_nan_in = [&](Bytes bytes, bool first, const char* what) {
    const Floats decoded = decode(bytes, n);
    for (int64_t i = 0; i < n; ++i) {
      const bool is_damaged = first == (i < kSparseBlock);
      ASSERT_EQ(std::isnan(decoded[static_cast<size_t>(i)]), is_damaged) << what << " " << i;
    }
  };
  const auto layout = codec::wire::sparse_layout(per_mille_, kSparseBlock);
  const auto bit = [](int64_t at, Bytes& bytes, size_t block) -> uint8_t& {
    return bytes[block + 4 + static_cast<size_t>(at / 8)];
  };
  int64_t first_one = 0;
  int64_t first_zero = 0;
  Bytes copy = message;
  while ((bit(first_one, copy, 0) >> first_one % 8 & 1) == 0) ++first_one;
  while ((bit(first_zero, copy, 0) >> first_zero % 8 & 1) == 1) ++first_zero;
  bit(first_one, copy, 0) ^= static_cast<uint8_t>(1 << first_one % 8);
  expect_nan_in(copy, true, "a place less");
  copy = message;
  bit(first_zero, copy, 0) ^= static_cast<uint8_t>(1 << first_zero % 8);
  expect_nan_in(copy, true, "a place more");
  copy = message;
  copy[0] = 0xC0;
  copy[1] = 0x7F;
  expect_nan_in(copy, true, "the first level is NaN");

  // All places in the first of the groups that share their upper bits: there are more than such places.
  copy = message;
  std::fill(copy.begin() + 4, copy.begin() + 4 + (layout.codes + 7) / 8, uint8_t{0});
  for (int64_t i = 0; i < layout.kept; ++i) bit(i, copy, 0) |= static_cast<uint8_t>(1 << i % 8);
  expect_nan_in(copy, true, "equal places");

  // A place behind the end of the array: 1000 is not a multiple of a group.
  const auto rest = codec::wire::sparse_layout(per_mille_, 1000);
  const auto block = static_cast<size_t>(layout.bytes);
  copy = message;
  std::fill(copy.begin() + static_cast<int64_t>(block) + 4, copy.end(), uint8_t{0xFF});
  expect_nan_in(copy, false, "too many places");
  Bytes behind(copy.begin() + static_cast<int64_t>(block), copy.end());
  std::fill(behind.begin() + 4, behind.end(), uint8_t{0});
  for (int64_t i = 0; i < rest.kept; ++i) {  // 0, 1, 2 ..., and the last one is the last of its group.
    const bool is_last = i + 1 == rest.kept;
    const int64_t place = is_last ? 999 | ((1 << rest.low_bits) - 1) : i;
    codec::wire::put_bits(behind.data() + 4, (place >> rest.low_bits) + i, 1);
    codec::wire::put_bits(behind.data() + 4, rest.lows + i * rest.low_bits,
                          static_cast<uint32_t>(place) & ((1U << rest.low_bits) - 1));
  }
  ASSERT_GT(999 | ((1 << rest.low_bits) - 1), 999);
  std::copy(behind.begin(), behind.end(), copy.begin() + static_cast<int64_t>(block));
  expect_nan_in(copy, false, "a place behind the end");

  // Levels of 0 need no places.
  copy = message;
  std::fill_n(copy.begin(), 4, uint8_t{0});
  const Floats zeros = decode(copy, n);
  EXPECT_EQ(nonzero_places(Floats(zeros.begin(), zeros.begin() + kSparseBlock)), std::vector<size_t>());
}

TEST_P(SparseFormats, AllInstructionSetsWriteTheSameBytes) {
  for (const int64_t n : {1, 7, 65, 1000, 4095, 4096, 4097, 9000}) {
    for (auto& [name, x] : test::wire_inputs(n)) {
      SCOPED_TRACE(::testing::Message() << name << " of size " << n);
      const Bytes expected = encode(x);
      for (const int64_t target : test::all_instruction_sets()) {
        const test::UseInstructionSet use(target);
        Bytes bytes(expected.size());
        test::wire_encode<float>(format_, {x.data(), n}, test::kNearest, bytes.data());
        EXPECT_EQ(bytes, expected);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, SparseFormats, ::testing::ValuesIn(test::sparse_formats()),
                         [](const auto& info) { return std::string(codec::wire::name_of(info.param)); });

}  // namespace
}  // namespace narrowcast
