// The contract of every wire format; all instruction sets must give the same results.
#include <gtest/gtest.h>
#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "ops/codec/variable_headers.h"
#include "ops/cpu/wire/wire_kernels.h"
#include "tests/ops/codec/instruction_sets.h"
#include "tests/ops/wire_format/whole_messages.h"
#include "tests/ops/wire_format/wire_inputs.h"

namespace narrowcast::cpu {
namespace {

using test::Bytes;
using test::Floats;
using test::kNearest;
using test::kStochastic;

constexpr uint8_t kUntouched = 0xA5;

int64_t count(const Floats& x) { return static_cast<int64_t>(x.size()); }

// The message of x, followed by a byte that must not change.
template <class T = float>
Bytes encode(WireFormat format, const std::vector<T>& x, const Rounding& rounding) {
  const auto size = static_cast<size_t>(test::size_of(format, static_cast<int64_t>(x.size())));
  Bytes bytes(size + 1, kUntouched);
  test::wire_encode<T>(format, {x.data(), static_cast<int64_t>(x.size())}, rounding, bytes.data());
  EXPECT_EQ(bytes.back(), kUntouched);
  bytes.pop_back();
  return bytes;
}

Floats decode(WireFormat format, const Bytes& bytes, int64_t n) {
  Floats out(static_cast<size_t>(n) + 1, 4711);
  test::wire_decode(format, bytes.data(), n, out.data());
  EXPECT_EQ(out.back(), 4711);
  out.pop_back();
  return out;
}

class WireFormats : public ::testing::TestWithParam<WireFormat> {
 protected:
  const WireFormat format_ = GetParam();

  // Calls body for each input of each size, and each instruction set.
  template <class Body>
  static void for_each_input(const Body& body) {
    for (const int64_t size : test::kSizes) {
      for (const auto& [name, x] : test::wire_inputs(size)) {
        SCOPED_TRACE(::testing::Message() << name << " of size " << size);
        body(x);
      }
    }
  }

  template <class Body>
  static void on_each_instruction_set(const Body& body) {
    for (const int64_t target : test::all_instruction_sets()) {
      const test::UseInstructionSet use(target);
      body();
    }
  }
};

TEST_P(WireFormats, RoundWhereTheirTypeSaysSo) {
  const Floats x = {1.0F / 3, 2.0F / 7, -0.1F};
  const Floats decoded = decode(format_, encode(format_, x, kNearest), count(x));
  EXPECT_EQ(decoded != x, codec::wire::rounds(format_));
}

TEST_P(WireFormats, EncodeTheBytesOfThePlainCodec) {
  for_each_input([&](const Floats& x) {
    for (const Rounding& rounding : {kNearest, kStochastic}) {
      const Bytes expected = test::plain_encode(format_, x, rounding);
      on_each_instruction_set([&] { EXPECT_EQ(encode(format_, x, rounding), expected); });
    }
  });
}

TEST_P(WireFormats, DecodeTheFloatsOfThePlainCodec) {
  for_each_input([&](const Floats& x) {
    const Bytes bytes = test::plain_encode(format_, x, kNearest);
    const Floats expected = test::plain_decode(format_, bytes, count(x));
    on_each_instruction_set([&] { EXPECT_TRUE(test::same(decode(format_, bytes, count(x)), expected)); });
  });
}

// Bytes that no encoder writes, as in a damaged message. All instruction sets decode the same numbers, except which
// NaN.
TEST_P(WireFormats, DecodeAnyBytesAlike) {
  constexpr int64_t kSize = 1027;
  // Random headers need more bits than most variable formats have, so their blocks are NaN. The other rounds use widths
  // of 2 to 4 bits, or of 2 and 3, for which all formats have room: a third of the rounds decodes to numbers.
  constexpr std::pair<uint8_t, uint8_t> kHeaderBits[] = {{0xFF, 0}, {0x7F, 8}, {0x5F, 8}};
  const auto make_narrow = [](const auto& bits, Bytes& bytes) {
    for (int64_t i = 0; i < codec::wire::blocks_of(kSize); ++i) {
      uint8_t& header = bytes[static_cast<size_t>(codec::wire::kStepBytes + i)];
      header = static_cast<uint8_t>((header & bits.first) | bits.second);
    }
  };
  // Random places do not ascend. So two thirds of the rounds have the places of a message, and a third of all have some
  // damaged place.
  const auto keep_places = [&](int round, Bytes& bytes) {
    const Bytes message = test::plain_encode(format_, test::usual_numbers(kSize), kNearest);
    const auto layout = codec::wire::sparse_layout(codec::wire::kept_per_mille(format_), kSize);
    const auto first = static_cast<size_t>(codec::wire::kLevelsBytes);
    const auto end = first + static_cast<size_t>((layout.codes + 7) / 8);
    const uint8_t damage = bytes[first];
    std::copy(message.begin() + first, message.begin() + end, bytes.begin() + first);
    bytes[first + damage % (end - first)] ^= round % 3 == 1 ? damage : 0;
  };
  int64_t numbers = 0;
  at::manual_seed(5);
  for (int round = 0; round < 20; ++round) {
    const at::Tensor random = at::randint(0, 256, {test::size_of(format_, kSize)}, at::kByte);
    Bytes bytes(random.const_data_ptr<uint8_t>(), random.const_data_ptr<uint8_t>() + random.numel());
    if (codec::wire::is_sparse(format_) && round % 3 > 0) keep_places(round, bytes);
    if (codec::wire::is_variable(format_)) make_narrow(kHeaderBits[round % std::size(kHeaderBits)], bytes);
    const Floats expected = test::plain_decode(format_, bytes, kSize);
    numbers += std::count_if(expected.begin(), expected.end(), [](float x) { return !std::isnan(x); });
    on_each_instruction_set([&] {
      const Floats decoded = decode(format_, bytes, kSize);
      for (size_t i = 0; i < decoded.size(); ++i) {
        ASSERT_TRUE(decoded[i] == expected[i] || (std::isnan(decoded[i]) && std::isnan(expected[i]))) << i;
      }
    });
  }
  EXPECT_GT(numbers, 20 * kSize / 8);
}

TEST_P(WireFormats, StayWithinTheBound) {
  if (codec::wire::is_variable(format_)) GTEST_SKIP() << "their messages say their bound";
  for_each_input([&](const Floats& x) {
    const Floats decoded = decode(format_, encode(format_, x, kNearest), count(x));
    const int64_t block = test::block_of(format_);
    for (int64_t begin = 0; begin < count(x); begin += block) {
      const int64_t n = std::min(block, count(x) - begin);
      const float largest = codec::float_of_bits(codec::wire::largest_magnitude(x.data() + begin, n));
      if (!(largest < test::overflow_threshold(format_))) continue;
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(begin + n); ++i) {
        ASSERT_LE(std::abs(double{decoded[i]} - x[i]), test::rounding_bound(format_, x[i], largest))
            << i << " " << x[i];
      }
    }
  });
}

TEST_P(WireFormats, StayWithinTheBoundThatTheMessageSays) {
  if (!codec::wire::is_variable(format_)) GTEST_SKIP() << "their blocks have it";
  for_each_input([&](const Floats& x) {
    const Bytes bytes = encode(format_, x, kNearest);
    const Floats decoded = decode(format_, bytes, count(x));
    const bool has_step = codec::wire::largest_magnitude(x.data(), count(x)) <= codec::wire::kGreatestMagnitudeBits;
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(std::isnan(decoded[i]), !has_step) << i << " " << x[i];
      if (has_step) {
        ASSERT_LE(std::abs(double{decoded[i]} - x[i]), test::variable_bound(bytes, x[i])) << i << " " << x[i];
      }
    }
  });
}

// At each position: in whole blocks, vectors of any width, and the remainder.
TEST_P(WireFormats, NeverMakeANumberOfNanOrInf) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr size_t kSize = 2 * 256 + 2 * 32 + 5;
  const Floats numbers = test::usual_numbers(static_cast<int64_t>(kSize));
  const bool is_variable = codec::wire::is_variable(format_);
  const auto block = is_variable ? kSize : static_cast<size_t>(test::block_of(format_));
  for (size_t at = 0; at < kSize; at += is_variable ? 17 : 1) {
    for (const float value : {kInf, -kInf, std::nanf(""), codec::float_of_bits(0xFF800001U)}) {
      Floats x = numbers;
      x[at] = value;
      for (const Rounding& rounding : {kNearest, kStochastic}) {
        const Floats decoded = decode(format_, encode(format_, x, rounding), count(x));
        ASSERT_FALSE(std::isfinite(decoded[at])) << at << " " << value;
        ASSERT_EQ(std::isnan(decoded[at]), block > 1 || std::isnan(value)) << at << " " << value;
        for (size_t i = 0; i < kSize; ++i) {  // Other blocks are not affected.
          ASSERT_EQ(std::isfinite(decoded[i]), i / block != at / block) << at << " " << i;
        }
      }
    }
  }
}

TEST_P(WireFormats, KeepZeros) {
  for (const int64_t size : test::kSizes) {
    const Floats zeros(static_cast<size_t>(size), 0.0F);
    Bytes expected(static_cast<size_t>(test::size_of(format_, size)), 0);
    if (codec::wire::is_variable(format_) && size > 0) {  // The least step.
      expected[0] = 0x80;
      expected[1] = 0x0D;
    }
    EXPECT_EQ(encode(format_, zeros, kNearest), expected);
    EXPECT_TRUE(test::same(decode(format_, encode(format_, zeros, kStochastic), size), zeros));
  }
}

TEST_P(WireFormats, AreMadeOfIndependentBlocks) {
  if (codec::wire::is_variable(format_)) GTEST_SKIP() << "cannot be split into parts";
  constexpr int64_t kSize = 5 * 256 + 17;
  const Floats x = test::usual_numbers(kSize);
  const int64_t block = test::block_of(format_);
  for (const Rounding& rounding : {kNearest, kStochastic}) {
    const Bytes whole = encode(format_, x, rounding);
    for (int64_t begin = 0; begin <= kSize; begin += block) {
      const Floats rest(x.begin() + begin, x.end());
      const Bytes bytes(whole.begin() + test::size_of(format_, begin), whole.end());
      ASSERT_EQ(encode(format_, rest, rounding.at(begin)), bytes) << begin;
      ASSERT_TRUE(test::same(decode(format_, bytes, count(rest)), test::plain_decode(format_, bytes, count(rest))));
    }
  }
}

TEST_P(WireFormats, ReadAndWriteAtAnyAddress) {
  const Floats x = test::usual_numbers(300);
  const Bytes expected = encode(format_, x, kNearest);
  on_each_instruction_set([&] {
    for (size_t shift = 1; shift < 8; shift += 2) {
      Bytes bytes(expected.size() + shift);
      test::wire_encode<float>(format_, {x.data() + shift, count(x) - static_cast<int64_t>(shift)}, kNearest,
                               bytes.data());
      test::wire_encode<float>(format_, {x.data(), count(x)}, kNearest, bytes.data() + shift);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), bytes.begin() + static_cast<int64_t>(shift)));
      Floats out(x.size() + shift);
      test::wire_decode(format_, bytes.data() + shift, count(x), out.data() + shift);
      EXPECT_TRUE(test::same(Floats(out.begin() + static_cast<int64_t>(shift), out.end()),
                             test::plain_decode(format_, expected, count(x))));
    }
  });
}

// Long arrays at aligned addresses are written past the caches.
TEST_P(WireFormats, DecodeLongAlignedArraysAlike) {
  constexpr int64_t kLong = (int64_t{1} << 18) + 77;
  const Floats x = test::usual_numbers(kLong);
  const Bytes bytes = encode(format_, x, kNearest);
  const Floats expected = test::plain_decode(format_, bytes, kLong);
  on_each_instruction_set([&] {
    const auto out = hwy::AllocateAligned<float>(kLong);
    test::wire_decode(format_, bytes.data(), kLong, out.get());
    EXPECT_TRUE(test::same(Floats(out.get(), out.get() + kLong), expected));
  });
}

template <class T>
void expect_encodes_as_float32(WireFormat format, const Floats& x) {
  const std::vector<T> narrow(x.begin(), x.end());
  const Floats floats(narrow.begin(), narrow.end());
  EXPECT_EQ(encode<T>(format, narrow, kNearest), test::plain_encode(format, floats, kNearest));
}

TEST_P(WireFormats, EncodeTheOtherElementTypesAsFloat32) {
  for (const auto& [name, x] : test::wire_inputs(3001)) {
    SCOPED_TRACE(name);
    on_each_instruction_set([&, &x = x] {
      expect_encodes_as_float32<double>(format_, x);
      expect_encodes_as_float32<c10::BFloat16>(format_, x);
      expect_encodes_as_float32<c10::Half>(format_, x);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, WireFormats, ::testing::ValuesIn(kWireFormats),
                         [](const auto& info) { return std::string(codec::wire::name_of(info.param)); });

}  // namespace
}  // namespace narrowcast::cpu
