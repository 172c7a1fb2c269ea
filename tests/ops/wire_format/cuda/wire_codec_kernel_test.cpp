// The encoding kernels' bytes and the decoding kernels' floats, compared with the plain codec.
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "ops/collectives/all_reduce/array/element_range.h"
#include "tests/ops/wire_format/cuda/kernels_on_host.h"
#include "tests/ops/wire_format/cuda/placed_array.h"
#include "tests/ops/wire_format/wire_inputs.h"
#include "tests/support/sanitized.h"

namespace narrowcast::cuda_on_host {
namespace {

using codec::wire::Rounding;
using test::Bytes;
using test::Floats;
using test::same_numbers;

// Stochastic rounding from an array position on. From a multiple of 4 on, a lane's random words come from one quad of
// the generator; with test::kStochastic they come from two.
Rounding from_position(uint64_t position) { return {true, 77, 3, position}; }

const std::vector<Rounding> kRoundings{test::kNearest, test::kStochastic, from_position(uint64_t{1} << 40)};

// Where arrays and messages begin, in bytes.
struct Places {
  int64_t elements = 0;
  int64_t message = 0;
};

// An array in shards, and the slots of their messages with gaps between them.
struct Cut {
  int64_t n;
  int64_t count;
  int64_t left_out;
  WireFormat format;
  int64_t chunk = 0;
  int64_t chunks = 1;

  // The chunk of each shard.
  std::vector<collectives::ElementRange> shards() const {
    std::vector<collectives::ElementRange> parts;
    for (const auto& shard : collectives::cut(n, count)) {
      parts.push_back(collectives::cut(shard, chunks)[static_cast<size_t>(chunk)]);
    }
    return parts;
  }
  int64_t stride() const {
    int64_t longest = 0;
    for (const auto& shard : shards()) longest = std::max(longest, test::size_of(format, shard.numel));
    return longest + 24;
  }
  int64_t bytes() const { return (count - (left_out < count ? 1 : 0)) * stride(); }
  cuda::Shards shape() const { return cuda::chunk_of(cuda::shards_of(n, count, left_out, stride()), chunk, chunks); }

  // Calls body(shard, first byte of its message).
  template <class Body>
  void for_messages(const Body& body) const {
    int64_t byte = 0;
    for (int64_t shard = 0; shard < count; ++shard) {
      if (shard == left_out) continue;
      body(shards()[static_cast<size_t>(shard)], byte);
      byte += stride();
    }
  }
};

template <class Body>
void for_cuts(WireFormat format, const Body& body) {
  for (const int64_t n : {1, 1024, 1025, 3079, 20000}) {
    for (const int64_t count : {1, 2, 3, 7}) {
      for (const int64_t left_out : {int64_t{0}, count / 2, count}) {
        SCOPED_TRACE(::testing::Message() << n << " in " << count << " without " << left_out);
        body(Cut{n, count, left_out, format});
        if (n < 3000) continue;
        for (int64_t chunk = 0; chunk < 3; ++chunk) body(Cut{n, count, left_out, format, chunk, 3});
      }
    }
  }
}

class CudaWireEncode : public ::testing::TestWithParam<WireFormat> {
 protected:
  const WireFormat format_ = GetParam();

  template <class T>
  Bytes encode(FloatType type, const std::vector<T>& x, const Rounding& rounding, Turns turns, Places places = {}) {
    const auto n = static_cast<int64_t>(x.size());
    test::PlacedArray<T> placed(x, places.elements);
    test::PlacedArray<uint8_t> message(test::size_of(format_, n), places.message);
    wire_encode(format_, {.type = type, .x = placed.data(), .n = n, .rounding = rounding, .message = message.data()},
                turns);
    return message.values();
  }

  template <class T>
  void expect_encodes_as_float32(FloatType type, const Floats& x) {
    const std::vector<T> narrow(x.begin(), x.end());
    const Floats floats(narrow.begin(), narrow.end());
    EXPECT_EQ(encode<T>(type, narrow, test::kNearest, Turns::kForward),
              test::plain_encode(format_, floats, test::kNearest));
  }
};

TEST_P(CudaWireEncode, GivesTheBytesOfThePlainCodec) {
  int64_t calls = 0;
  for (const int64_t size : test::kTileSizes) {
    for (const auto& [name, x] : test::wire_inputs(size)) {
      for (const Rounding& rounding : kRoundings) {
        SCOPED_TRACE(::testing::Message() << name << " of size " << size << " from " << rounding.position);
        const Turns turns = ++calls % 2 == 0 ? Turns::kForward : Turns::kBackward;
        ASSERT_EQ(encode(FloatType::kFloat32, x, rounding, turns), test::plain_encode(format_, x, rounding));
      }
    }
  }
}

TEST_P(CudaWireEncode, DoesInAnyOrderOfTurns) {
  const Floats x = test::usual_numbers(3000);
  for (const Turns turns : {Turns::kForward, Turns::kBackward}) {
    for (uint64_t position = 0; position < 5; ++position) {
      const Rounding rounding = from_position(position);
      EXPECT_EQ(encode(FloatType::kFloat32, x, rounding, turns), test::plain_encode(format_, x, rounding));
    }
  }
}

TEST_P(CudaWireEncode, WritesToAnyAddress) {
  for (const int64_t size : {1, 7, 33, 1024, 1321}) {
    const Floats x = test::usual_numbers(size);
    const Bytes expected = test::plain_encode(format_, x, test::kNearest);
    for (int64_t shift = 0; shift < 16; ++shift) {
      SCOPED_TRACE(::testing::Message() << size << " elements " << shift << " bytes behind a boundary");
      const Places places{.elements = shift % 4 * 4, .message = shift};
      ASSERT_EQ(encode(FloatType::kFloat32, x, test::kNearest, Turns::kForward, places), expected);
    }
  }
}

// More tiles than a thread block has warps.
TEST_P(CudaWireEncode, TakesLongArrays) {
  const Floats x = test::usual_numbers(20000);
  EXPECT_EQ(encode(FloatType::kFloat32, x, test::kStochastic, Turns::kBackward),
            test::plain_encode(format_, x, test::kStochastic));
}

TEST_P(CudaWireEncode, GivesEachShardAMessage) {
  for_cuts(format_, [&](const Cut& cut) {
    const Floats x = test::usual_numbers(cut.n);
    test::PlacedArray<uint8_t> messages(cut.bytes(), 0);
    Bytes expected = messages.values();
    cut.for_messages([&](const collectives::ElementRange& shard, int64_t byte) {
      const Floats part(x.begin() + shard.begin, x.begin() + shard.begin + shard.numel);
      const Bytes message = test::plain_encode(format_, part, test::kStochastic.at(shard.begin));
      std::copy(message.begin(), message.end(), expected.begin() + byte);
    });
    wire_encode(
        format_,
        {.x = x.data(), .n = cut.n, .rounding = test::kStochastic, .message = messages.data(), .shards = cut.shape()},
        Turns::kForward);
    EXPECT_EQ(messages.values(), expected);
  });
}

TEST_P(CudaWireEncode, TakesTheOtherElementTypesAsFloat32) {
  for (const int64_t size : {257, 2048}) {
    for (const auto& [name, x] : test::wire_inputs(size)) {
      SCOPED_TRACE(name);
      expect_encodes_as_float32<double>(FloatType::kFloat64, x);
      expect_encodes_as_float32<c10::BFloat16>(FloatType::kBfloat16, x);
      expect_encodes_as_float32<c10::Half>(FloatType::kFloat16, x);
    }
  }
}

// At each position: every lane, row and block, and the remainder after the last whole block.
TEST_P(CudaWireEncode, NeverMakesANumberOfANan) {
  constexpr size_t kSize = 1024 + 70;
  for (size_t at = 0; at < kSize; at += test::kSanitized ? 55 : 5) {
    Floats x(kSize, 0.25F);
    x[at] = at % 2 == 0 ? std::nanf("") : -std::numeric_limits<float>::infinity();
    const Rounding& rounding = at % 3 == 0 ? test::kStochastic : test::kNearest;
    ASSERT_EQ(encode(FloatType::kFloat32, x, rounding, Turns::kForward), test::plain_encode(format_, x, rounding));
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaWireEncode, ::testing::ValuesIn(test::fixed_formats()),
                         [](const auto& info) { return std::string(codec::wire::name_of(info.param)); });

class CudaWireDecode : public ::testing::TestWithParam<WireFormat> {
 protected:
  const WireFormat format_ = GetParam();

  template <class T = float>
  std::vector<T> decode(const Bytes& message, int64_t n, Turns turns, int64_t message_shift = 0,
                        FloatType type = FloatType::kFloat32) {
    test::PlacedArray<uint8_t> placed(message, message_shift);
    test::PlacedArray<T> out(n, message_shift % 4 * static_cast<int64_t>(sizeof(T)));
    wire_decode(format_, {.message = placed.data(), .n = n, .type = type, .out = out.data()}, turns);
    return out.values();
  }

  template <class T>
  void expect_decodes_and_rounds(FloatType type, const Bytes& message, int64_t n) {
    const Floats expected = test::plain_decode(format_, message, n);
    const std::vector<T> rounded(expected.begin(), expected.end());
    const std::vector<T> decoded = decode<T>(message, n, Turns::kForward, 0, type);
    EXPECT_TRUE(same_numbers(Floats(decoded.begin(), decoded.end()), Floats(rounded.begin(), rounded.end())));
  }
};

TEST_P(CudaWireDecode, GivesTheFloatsOfThePlainCodec) {
  int64_t calls = 0;
  for (const int64_t size : test::kTileSizes) {
    for (const auto& [name, x] : test::wire_inputs(size)) {
      SCOPED_TRACE(::testing::Message() << name << " of size " << size);
      const Bytes message = test::plain_encode(format_, x, test::kNearest);
      const Turns turns = ++calls % 2 == 0 ? Turns::kForward : Turns::kBackward;
      ASSERT_TRUE(same_numbers(decode(message, size, turns), test::plain_decode(format_, message, size)));
    }
  }
}

// Bytes that no encoder writes, as in a damaged message, at any address.
TEST_P(CudaWireDecode, TakesAnyBytesAtAnyAddress) {
  for (const int64_t size : {5, 1024, 3001}) {
    for (int64_t shift = 0; shift < 16; ++shift) {
      SCOPED_TRACE(::testing::Message() << size << " elements " << shift << " bytes behind a boundary");
      at::manual_seed(shift);
      const at::Tensor random = at::randint(0, 256, {test::size_of(format_, size)}, at::kByte);
      const Bytes message(random.const_data_ptr<uint8_t>(), random.const_data_ptr<uint8_t>() + random.numel());
      const Floats expected = test::plain_decode(format_, message, size);
      for (const Turns turns : {Turns::kForward, Turns::kBackward}) {
        ASSERT_TRUE(same_numbers(decode(message, size, turns, shift), expected));
      }
    }
  }
}

TEST_P(CudaWireDecode, TakesAMessageOfEachShard) {
  for_cuts(format_, [&](const Cut& cut) {
    const Floats x = test::usual_numbers(cut.n);
    Bytes messages(static_cast<size_t>(cut.bytes()));
    Floats expected(x.size(), 7);
    cut.for_messages([&](const collectives::ElementRange& shard, int64_t byte) {
      const Bytes message = test::plain_encode(
          format_, Floats(x.begin() + shard.begin, x.begin() + shard.begin + shard.numel), test::kNearest);
      std::copy(message.begin(), message.end(), messages.begin() + byte);
      const Floats decoded = test::plain_decode(format_, message, shard.numel);
      std::copy(decoded.begin(), decoded.end(), expected.begin() + shard.begin);
    });
    test::PlacedArray<float> out(Floats(x.size(), 7), 0);
    wire_decode(format_, {.message = messages.data(), .n = cut.n, .out = out.data(), .shards = cut.shape()},
                Turns::kBackward);
    EXPECT_TRUE(same_numbers(out.values(), expected));
  });
}

TEST_P(CudaWireDecode, RoundsToTheOtherElementTypes) {
  for (const int64_t size : {257, 2048}) {
    for (const auto& [name, x] : test::wire_inputs(size)) {
      SCOPED_TRACE(name);
      const Bytes message = test::plain_encode(format_, x, test::kNearest);
      expect_decodes_and_rounds<double>(FloatType::kFloat64, message, size);
      expect_decodes_and_rounds<c10::BFloat16>(FloatType::kBfloat16, message, size);
      expect_decodes_and_rounds<c10::Half>(FloatType::kFloat16, message, size);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaWireDecode, ::testing::ValuesIn(test::fixed_formats()),
                         [](const auto& info) { return std::string(codec::wire::name_of(info.param)); });

// Launches check it first: a kernel must not return as if it had no work.
TEST(CudaWireKernels, FailForAnUnknownElementType) {
  constexpr auto kUnknown = static_cast<FloatType>(4);
  test::PlacedArray<uint8_t> message(4, 0);
  test::PlacedArray<float> array(1, 0);
  EXPECT_THROW(wire_encode(WireFormat::kInt8B32,
                           {.type = kUnknown, .x = array.data(), .n = 1, .message = message.data()}, Turns::kForward),
               std::invalid_argument);
  EXPECT_THROW(wire_decode(WireFormat::kInt8B32,
                           {.message = message.data(), .n = 1, .type = kUnknown, .out = array.data()}, Turns::kForward),
               std::invalid_argument);
}

}  // namespace
}  // namespace narrowcast::cuda_on_host
