// Messages of the variable formats, written and read in parts on every instruction set, compared with the plain codec.
#include "ops/cpu/variable/variable_message.h"

#include <gtest/gtest.h>
#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/ops/codec/instruction_sets.h"
#include "tests/ops/wire_format/plain_variable.h"
#include "tests/ops/wire_format/variable_inputs.h"
#include "tests/support/end_of_page.h"

namespace narrowcast::cpu {
namespace {

using test::Bytes;
using test::Floats;
using test::length;
using test::on_each_instruction_set;
using test::plain_decode;
using test::plain_encode;
using test::same;
using test::size_of;

constexpr uint8_t kGuard = 0xA5;
constexpr int64_t kLong = (int64_t{1} << 18) + 5 * kWireGrain + 77;  // Decoded numbers are written past the caches.
const Rounding kToNearest{};

// Calls body(first element, elements) for parts of `grains` grains, the last part first.
template <class Body>
void for_parts(int64_t n, int64_t grains, const Body& body) {
  const int64_t part = grains * kWireGrain;
  for (int64_t first = (std::max<int64_t>(n, 1) - 1) / part * part; first >= 0; first -= part) {
    body(first, std::min(part, n - first));
  }
}

template <class T>
Bytes encode(int bits, const std::vector<T>& x, const Rounding& rounding, int64_t grains = 1 << 20) {
  const auto n = static_cast<int64_t>(x.size());
  Bytes bytes(size_of(bits, n) + 1, kGuard);
  VariableWriter writer(bits, rounding, n, bytes.data());
  for_parts(n, grains, [&](int64_t first, int64_t part) {
    writer.measure(first, WireInput<T>{x.data() + first, part});
  });
  writer.settle();
  for_parts(n, grains, [&](int64_t first, int64_t part) { writer.write(first, WireInput<T>{x.data() + first, part}); });
  EXPECT_EQ(bytes.back(), kGuard);
  bytes.pop_back();
  Floats back(x.size());
  for_parts(n, grains, [&](int64_t first, int64_t part) { writer.read_back(first, part, back.data() + first); });
  EXPECT_TRUE(same(back, plain_decode(bits, bytes.data(), n)));
  return bytes;
}

Floats decode(int bits, const uint8_t* bytes, int64_t n, int64_t grains = 1 << 20) {
  Floats out(static_cast<size_t>(n) + 1, 4711);
  const VariableReader reader(bits, bytes, n);
  for_parts(n, grains, [&](int64_t first, int64_t part) {
    if (part > 0) variable_decode(reader.source(), first, {out.data() + first, part});
  });
  EXPECT_EQ(out.back(), 4711);
  out.pop_back();
  return out;
}

class VariableMessages : public ::testing::TestWithParam<int> {
 protected:
  const int bits_ = GetParam();

  template <class Body>
  void for_each_input(const Body& body) {
    for (const int64_t n : test::kLengths) {
      for (const auto& [name, x] : test::variable_inputs(n)) {
        SCOPED_TRACE(::testing::Message() << name << " of " << n);
        body(x);
      }
    }
  }
};

TEST_P(VariableMessages, AreTheBytesOfThePlainCodec) {
  for_each_input([&](const Floats& x) {
    for (const Rounding& rounding : {kToNearest, test::kAtRandom}) {
      const Bytes expected = plain_encode(bits_, x, rounding);
      on_each_instruction_set([&] {
        ASSERT_EQ(encode(bits_, x, rounding), expected);
        ASSERT_EQ(encode(bits_, x, rounding, 1), expected);
      });
    }
  });
}

TEST_P(VariableMessages, AreTheFloatsOfThePlainCodec) {
  for_each_input([&](const Floats& x) {
    const Bytes bytes = plain_encode(bits_, x, kToNearest);
    const Floats expected = plain_decode(bits_, bytes.data(), length(x));
    on_each_instruction_set([&] {
      ASSERT_TRUE(same(decode(bits_, bytes.data(), length(x)), expected));
      ASSERT_TRUE(same(decode(bits_, bytes.data(), length(x), 1), expected));
    });
  });
}

TEST_P(VariableMessages, OfLongArraysHaveTheSameStep) {
  bool stochastic = false;
  for (const auto& [name, x] : test::variable_inputs(kLong)) {
    SCOPED_TRACE(name);
    const Rounding& rounding = stochastic ? test::kAtRandom : kToNearest;
    stochastic = !stochastic;
    const Bytes expected = plain_encode(bits_, x, rounding);
    const Floats decoded = plain_decode(bits_, expected.data(), kLong);
    on_each_instruction_set([&, &x = x] {
      EXPECT_EQ(encode(bits_, x, rounding, 7), expected);
      EXPECT_TRUE(same(decode(bits_, expected.data(), kLong, 100), decoded));
      const auto aligned = hwy::AllocateAligned<float>(kLong);  // Written past the caches.
      variable_decode(VariableReader(bits_, expected.data(), kLong).source(), 0, {aligned.get(), kLong});
      EXPECT_TRUE(same(Floats(aligned.get(), aligned.get() + kLong), decoded));
    });
  }
}

TEST_P(VariableMessages, WithANumberThatNoStepReachesAreNan) {
  for (const float value :
       {std::numeric_limits<float>::infinity(), std::nanf(""), -std::numeric_limits<float>::max()}) {
    for (const size_t at : {0, 1500, 2499}) {
      Floats x = test::all_variable_inputs(2500)[0].second;
      x[at] = value;
      const Bytes expected = plain_encode(bits_, x, kToNearest);
      on_each_instruction_set([&] {
        EXPECT_EQ(encode(bits_, x, kToNearest, 1), expected);
        for (const float decoded : decode(bits_, expected.data(), 2500)) ASSERT_TRUE(std::isnan(decoded));
      });
    }
  }
}

template <class T>
void expect_encodes_as_float32(int bits, const Floats& x) {
  const std::vector<T> narrow(x.begin(), x.end());
  const Floats floats(narrow.begin(), narrow.end());
  EXPECT_EQ(encode(bits, narrow, kToNearest, 1), plain_encode(bits, floats, kToNearest));
}

TEST_P(VariableMessages, OfOtherElementTypesAreThoseOfFloat32) {
  for (const auto& [name, x] : test::variable_inputs(3001)) {
    SCOPED_TRACE(name);
    on_each_instruction_set([&, &x = x] {
      expect_encodes_as_float32<double>(bits_, x);
      expect_encodes_as_float32<c10::BFloat16>(bits_, x);
      expect_encodes_as_float32<c10::Half>(bits_, x);
    });
  }
}

TEST_P(VariableMessages, LieAtAnyAddress) {
  const Floats x = test::all_variable_inputs(3000)[1].second;
  const Bytes expected = plain_encode(bits_, x, kToNearest);
  const Floats decoded = plain_decode(bits_, expected.data(), 3000);
  on_each_instruction_set([&] {
    for (size_t shift = 1; shift < 8; shift += 2) {
      Bytes bytes(expected.size() + shift);
      Floats shifted(shift);
      shifted.insert(shifted.end(), x.begin(), x.end());
      VariableWriter writer(bits_, kToNearest, 3000, bytes.data() + shift);
      writer.measure(0, WireInput<float>{shifted.data() + shift, 3000});
      writer.settle();
      writer.write(0, WireInput<float>{shifted.data() + shift, 3000});
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), bytes.begin() + static_cast<int64_t>(shift)));
      variable_decode(VariableReader(bits_, bytes.data() + shift, 3000).source(), 0, {shifted.data() + shift, 3000});
      EXPECT_TRUE(same(Floats(shifted.begin() + static_cast<int64_t>(shift), shifted.end()), decoded));
    }
  });
}

// Memory behind the message is not accessible.
TEST_P(VariableMessages, OfAnyBytesAreReadAlike) {
  std::mt19937 engine(7);
  for (const int64_t n : test::kLengths) {
    const auto first_code = static_cast<size_t>(codec::wire::variable_layout(bits_, n).first_code);
    test::EndOfPage message(size_of(bits_, n));
    for (const uint8_t headers : {0xFF, 0xF3, 0x77, 0xF1, 0x12}) {  // From headers that do not fit to faint ones.
      for (int round = 0; round < 8; ++round) {
        std::generate_n(message.data(), size_of(bits_, n), [&] { return static_cast<uint8_t>(engine()); });
        for (size_t i = 2; i < first_code; ++i) message.data()[i] &= headers;
        const Floats expected = plain_decode(bits_, message.data(), n);
        on_each_instruction_set([&] { ASSERT_TRUE(same(decode(bits_, message.data(), n, 1), expected)); });
      }
    }
  }
}

// A changed header may need more bits than the message has room for. The last group then becomes NaN or, if it has free
// bytes, other numbers.
TEST_P(VariableMessages, ThatAreAlmostFullAreReadAlike) {
  for (const auto& [name, x] : test::variable_inputs(1500)) {
    SCOPED_TRACE(name);
    const Bytes encoded = plain_encode(bits_, x, test::kAtRandom);
    test::EndOfPage message(encoded.size());
    for (size_t block = 0; block < 47; ++block) {
      std::copy(encoded.begin(), encoded.end(), message.data());
      for (int more = 1; more < 16; ++more) {
        ++message.data()[2 + block];
        const Floats expected = plain_decode(bits_, message.data(), length(x));
        on_each_instruction_set([&] { ASSERT_TRUE(same(decode(bits_, message.data(), length(x), 1), expected)); });
      }
    }
  }
}

// Messages of several ranks, and the array of one rank.
struct RankMessages {
  std::vector<Bytes> messages;
  Floats own;
  Floats mean;

  RankMessages(int bits, int64_t ranks, int64_t own_rank, int64_t n) : mean(static_cast<size_t>(n)) {
    constexpr size_t kInputs[] = {0, 1, 12};  // Blocks of similar magnitude, of different magnitudes, and faint ones.
    for (int64_t r = 0; r < ranks; ++r) {
      const Floats x = test::all_variable_inputs(n)[kInputs[r % 3]].second;
      messages.push_back(r == own_rank ? Bytes() : plain_encode(bits, x, kToNearest));
      const Floats part = r == own_rank ? x : plain_decode(bits, messages.back().data(), n);
      for (size_t i = 0; i < mean.size(); ++i) mean[i] = r == 0 ? part[i] : mean[i] + part[i];
      if (r == own_rank) own = x;
    }
    for (float& value : mean) value /= static_cast<float>(ranks);
  }
};

void expect_average(int bits, const RankMessages& all, int64_t grains) {
  const int64_t n = length(all.mean);
  std::vector<VariableReader> readers;
  std::vector<VariableSource> sources;
  for (const Bytes& message : all.messages) {
    readers.emplace_back(bits, message.data(), message.empty() ? 0 : n);
    sources.push_back(readers.back().source());
  }
  std::vector<const VariableSource*> pointers;
  for (size_t r = 0; r < sources.size(); ++r) pointers.push_back(all.messages[r].empty() ? nullptr : &sources[r]);
  Floats mean = all.own.empty() ? Floats(all.mean.size()) : all.own;
  for_parts(n, grains, [&](int64_t first, int64_t part) {
    const auto ranks = static_cast<int64_t>(pointers.size());
    variable_average({pointers.data(), ranks, {mean.data() + first, part}, first}, {mean.data() + first, part});
  });
  EXPECT_TRUE(same(mean, all.mean));
}

TEST_P(VariableMessages, AreAveragedInTheOrderOfRanks) {
  for (const int64_t n : {1, 33, 1025, 5000}) {
    for (const int64_t ranks : {1, 2, 3, 7}) {
      for (int64_t own_rank = -1; own_rank < ranks; own_rank += 1 + ranks / 3) {
        const RankMessages all(bits_, ranks, own_rank, n);
        on_each_instruction_set([&] {
          expect_average(bits_, all, 1);
          expect_average(bits_, all, 100);
        });
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, VariableMessages, ::testing::Values(3, 4, 5, 6));

// The same numbers, but some blocks contain a special number of either sign.
Floats with_all_kinds(Floats x) {
  constexpr uint32_t kKinds[] = {0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF,
                                 0x7F7F0001, 0xFF7FFFFF, 0x80000000, 0x00000001, 0x80000001, 0x7F800001};
  size_t at = 0;
  for (const uint32_t kind : kKinds) {
    if (at >= x.size()) break;
    x[at] = codec::float_of_bits(kind);
    at += 33;
  }
  return x;
}

TEST(VariableExtents, AreThoseOfThePlainCodec) {
  for (const int64_t n : {1, 31, 32, 33, 1024, 2050}) {
    for (const auto& [name, regular] : test::variable_inputs(n)) {
      for (const Floats& x : {regular, with_all_kinds(regular)}) {
        SCOPED_TRACE(::testing::Message() << name << " of " << n);
        on_each_instruction_set([&] {
          std::vector<BlockExtent> extents(static_cast<size_t>(codec::wire::blocks_of(n)));
          variable_extents(WireInput<float>{x.data(), n}, extents.data());
          ASSERT_EQ(test::bits_of(extents), test::plain_extents(x));
        });
      }
    }
  }
}

// Checks the counts and headers of blocks with these extents, in whole grains.
void expect_counts(const std::vector<BlockExtent>& extents, int64_t blocks, const codec::wire::StepCodes& step) {
  Bytes headers;
  int64_t bytes = 0;
  int64_t sampled = 0;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t of_block = step.width(extents[static_cast<size_t>(i)]) * codec::wire::kWordBytes;
    bytes += of_block;
    sampled += i / kGrainBlocks % 2 == 0 ? of_block : 0;
    headers.push_back(static_cast<uint8_t>(step.header(extents[static_cast<size_t>(i)])));
  }
  ASSERT_EQ(variable_bytes(extents.data(), blocks, 1, step), bytes) << step.step;
  ASSERT_EQ(variable_bytes(extents.data(), blocks, 2, step), sampled) << step.step;
  Bytes written(headers.size() + 1, kGuard);
  variable_headers(extents.data(), blocks, step, written.data());
  ASSERT_EQ(written.back(), kGuard);
  written.pop_back();
  ASSERT_EQ(written, headers) << step.step;
  std::vector<int64_t> offsets(extents.size() / 32 + 1);
  variable_offsets(headers.data(), blocks, offsets.data());
  ASSERT_EQ(offsets.front(), 0);
  ASSERT_EQ(offsets.back(), bytes);
}

TEST(VariableCounts, AreThoseOfThePlainCodecWithAnyStep) {
  for (const auto& [name, x] : test::variable_inputs(2050)) {
    std::vector<BlockExtent> extents(96);
    for (int64_t i = 0; i < 65; ++i) extents[static_cast<size_t>(i)] = codec::wire::extent_of_block(x.data(), 2050, i);
    uint32_t most = 0;
    for (const BlockExtent extent : extents) most = std::max(most, extent.larger());
    on_each_instruction_set([&] { ASSERT_EQ(variable_largest(extents.data(), 65), most); });
    for (const bool stochastic : {false, true}) {
      for (uint32_t bits = codec::wire::kLeastStep; bits <= codec::wire::kGreatestStep; bits += 61) {
        const auto step = codec::wire::StepCodes::of(static_cast<uint16_t>(bits), {.stochastic = stochastic});
        if (!step.has_code(codec::float_of_bits(most) * step.inverse)) continue;
        on_each_instruction_set([&] { expect_counts(extents, 65, step); });
      }
    }
  }
}

}  // namespace
}  // namespace narrowcast::cpu
