// Encoding and decoding of a warp's tile: in a block format as scales and codes (BlockTile), in a float format as one
// code for each element (FloatTile).
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "ops/codec/host_device.h"
#include "ops/codec/wire_elements.h"
#include "ops/codec/wire_format.h"
#include "ops/codec/wire_message.h"
#include "ops/codec/wire_rounding.h"
#include "ops/cuda/launch/vectors.h"
#include "ops/cuda/wire/array_tile.cuh"
#include "ops/cuda/wire/message_tile.cuh"

namespace narrowcast::cuda {

// The random words (codec/wire_rounding.h) of the kColumns elements from element `first` on. They come from one quad of
// the generator, or from two if the array begins within a quad. Selects are used instead of indices, which would put
// the words into local memory.
__device__ __forceinline__ codec::wire::PhiloxWords random_columns(const codec::wire::Rounding& rounding, int first) {
  const uint64_t position = rounding.position + static_cast<uint64_t>(first);
  codec::wire::PhiloxWords words = codec::wire::random_words(rounding, position / kColumns);
  const auto skipped = static_cast<int>(position % kColumns);
  if (skipped == 0) {
    return words;
  }
  codec::wire::PhiloxWords next = codec::wire::random_words(rounding, position / kColumns + 1);
  if (skipped % 2 != 0) {
    words = {{words.word[1], words.word[2], words.word[3], next.word[0]}};
    next = {{next.word[1], next.word[2], 0, 0}};
  }
  if (skipped >= 2) {
    words = {{words.word[2], words.word[3], next.word[0], next.word[1]}};
  }
  return words;
}

// The largest of value i % kValues over the kLanes lanes around lane i; both numbers are powers of two.
template <int kValues, int kLanes>
__device__ __forceinline__ uint32_t largest_of_one(uint32_t (&values)[kValues], int lane) {
  static_assert(kLanes >= kValues, "a block must be on as many lanes as each holds parts of");
  const auto larger = [](uint32_t a, uint32_t b) { return a > b ? a : b; };
  NARROWCAST_UNROLL
  for (int half = kValues / 2; half > 0; half /= 2) {
    const bool keeps_upper = (lane & half) != 0;
    NARROWCAST_UNROLL
    for (int i = 0; i < half; ++i) {
      const uint32_t kept = keeps_upper ? values[i + half] : values[i];
      const uint32_t given = keeps_upper ? values[i] : values[i + half];
      values[i] = larger(kept, __shfl_xor_sync(kAllLanes, given, half));
    }
  }
  uint32_t largest = values[0];
  NARROWCAST_UNROLL
  for (int bit = kValues; bit < kLanes; bit *= 2) {
    largest = larger(largest, __shfl_xor_sync(kAllLanes, largest, bit));
  }
  return largest;
}

// The codec of a tile in a block format.
//
// A lane holds parts of kScales blocks. To find their scales, lanes exchange magnitudes until each lane has the largest
// magnitude of one block. It computes the scale of that block only ("keeps" it), and passes it to other lanes on
// request.
template <class Format>
struct BlockTile {
  using Element = typename Format::Element;
  static constexpr int kUnit = codec::wire::kScaleBytes;  // Scales start at multiples of kUnit from the first scale on.
  static constexpr int kBits = Format::kBits;
  static constexpr int kBlock = Format::kBlock;
  static constexpr int kBlockBytes = Format::kBlockBytes;
  static constexpr int kRowsPerBlock = kBlock > kRowElements ? kBlock / kRowElements : 1;
  static constexpr int kBlocksPerRow = kBlock > kRowElements ? 1 : kRowElements / kBlock;
  static constexpr int kLanesPerBlock = kWarpSize / kBlocksPerRow;
  static constexpr int kScales = kRows / kRowsPerBlock;
  static constexpr int kCodeBytes = kColumns * kBits / 8;  // Bytes of a lane's codes in a row.

  // The offset in a message of a lane's codes in a row: the sum of the lane's part and the row's part, a constant.
  static __device__ __forceinline__ int lane_offset(int lane) {
    return lane / kLanesPerBlock * kBlockBytes + static_cast<int>(codec::wire::kScaleBytes) +
           lane % kLanesPerBlock * kCodeBytes;
  }
  static constexpr __device__ __forceinline__ int row_offset(int row) {
    return row / kRowsPerBlock * kBlocksPerRow * kBlockBytes + row % kRowsPerBlock * (kRowElements * kBits / 8);
  }

  // The offset of the scale that the lane keeps. It belongs to number lane % kScales of the blocks that the lane has
  // parts of.
  static __device__ __forceinline__ int kept_offset(int lane) {
    return (lane % kScales * kBlocksPerRow + lane / kLanesPerBlock) * kBlockBytes;
  }

  // The value for a row, from the lane that keeps it.
  static __device__ __forceinline__ float value_for_row(float kept, int row) {
    return __shfl_sync(kAllLanes, kept, row / kRowsPerBlock, kScales);
  }

  // The bits of the largest magnitude of the block whose scale the lane keeps.
  static __device__ __forceinline__ uint32_t largest_of_kept(const TileValues& x, int lane) {
    uint32_t largest[kScales];
    NARROWCAST_UNROLL
    for (int scale = 0; scale < kScales; ++scale) {
      largest[scale] = 0;
      NARROWCAST_UNROLL
      for (int i = 0; i < kRowsPerBlock * kColumns; ++i) {
        const uint32_t bits = codec::magnitude_bits(x.at[scale * kRowsPerBlock + i / kColumns][i % kColumns]);
        largest[scale] = bits > largest[scale] ? bits : largest[scale];
      }
    }
    return largest_of_one<kScales, kLanesPerBlock>(largest, lane);
  }

  // Writes the tile's message to `message`, which is at a multiple of kUnit.
  static __device__ __forceinline__ void encode(const TileValues& x, const codec::wire::Rounding& rounding, int lane,
                                                uint8_t* message) {
    const uint16_t scale = codec::wire::block_scale(largest_of_kept(x, lane), Element::kGreatest);
    if (lane % kLanesPerBlock < kScales) {
      store_vector(message + kept_offset(lane), scale);
    }
    if (rounding.stochastic) {
      encode_rows<true>(x, rounding, scale, lane, message);
    } else {
      encode_rows<false>(x, rounding, scale, lane, message);
    }
  }

  // Calls sink(row, column, value) for each of the lane's elements of the message at staging + offset.
  template <class Sink>
  static __device__ __forceinline__ void decode(const uint8_t* staging, int offset, int lane, const Sink& sink) {
    for_numbers(kept_scale(staging, offset, lane), staging, offset, lane,
                [&](int row, int column, float scale, float number) { sink(row, column, scale * number); });
  }

  // sum += the elements of that message. The product of a scale and a code's number is exact, since both have few
  // digits, so one instruction may compute and add it unless it overflows.
  static __device__ __forceinline__ void add(const uint8_t* staging, int offset, int lane, TileValues& sum) {
    constexpr uint32_t kMayOverflow = 0x7B000000U;  // 2^119; the numbers are below 2^9.
    static_assert(Element::kGreatest < 0x1p9F, "smaller scales must not overflow");
    const float kept = kept_scale(staging, offset, lane);
    const uint32_t magnitude = codec::magnitude_bits(kept);
    if (__any_sync(kAllLanes, magnitude >= kMayOverflow && magnitude < codec::kInfBits)) {
      for_numbers(kept, staging, offset, lane,
                  [&](int row, int column, float scale, float number) { sum.at[row][column] += scale * number; });
    } else {
      for_numbers(kept, staging, offset, lane, [&](int row, int column, float scale, float number) {
        sum.at[row][column] = std::fma(scale, number, sum.at[row][column]);
      });
    }
  }

 private:
  // The value of the scale that the lane keeps, from the message at staging + offset.
  static __device__ __forceinline__ float kept_scale(const uint8_t* staging, int offset, int lane) {
    const uint8_t* const scale = staging + offset + kept_offset(lane);
    return codec::wire::scale_value(static_cast<uint16_t>(scale[0] | scale[1] << 8));
  }

  // The number that a column's code stands for, from the word of a lane's codes.
  template <int kColumn>
  static __device__ __forceinline__ float number(uint32_t word) {
    if constexpr (std::is_same_v<Element, codec::wire::SymmetricInt<8>>) {
      return signed_byte(word, kColumn);
    } else if constexpr (std::is_same_v<Element, codec::wire::Float8E4M3>) {
      return e4m3_value<kColumn>(word);
    } else {
      return Element::template decode_field<kColumn * kBits>(word);
    }
  }

  // Calls sink(row, column, scale, number) for each of the lane's elements.
  template <class Sink>
  static __device__ __forceinline__ void for_numbers(float kept, const uint8_t* staging, int offset, int lane,
                                                     const Sink& sink) {
    NARROWCAST_UNROLL
    for (int row = 0; row < kRows; ++row) {
      const float scale = value_for_row(kept, row);
      const UnalignedWords<1> word(staging + row_offset(row) / 4 * 4, offset + lane_offset(lane) + row_offset(row) % 4);
      sink(row, 0, scale, number<0>(word.at[0]));
      sink(row, 1, scale, number<1>(word.at[0]));
      sink(row, 2, scale, number<2>(word.at[0]));
      sink(row, 3, scale, number<3>(word.at[0]));
    }
  }

  template <bool kStochastic>
  static __device__ __forceinline__ void encode_rows(const TileValues& x, const codec::wire::Rounding& rounding,
                                                     uint16_t scale, int lane, uint8_t* message) {
    // A NaN means that all codes are 0.
    const float kept = scale == codec::wire::kNanScale ? codec::float_of_bits(codec::kQuietNanBits)
                                                       : codec::wire::inverse_scale(scale);
    NARROWCAST_UNROLL
    for (int row = 0; row < kRows; ++row) {
      const float inverse = value_for_row(kept, row);
      codec::wire::PhiloxWords random = {};
      if constexpr (kStochastic) {
        spare_registers();
        random = random_columns(rounding, row * kRowElements + kColumns * lane);
      }
      float y[kColumns];
      NARROWCAST_UNROLL
      for (int column = 0; column < kColumns; ++column) {
        y[column] = inverse == inverse ? x.at[row][column] * inverse : 0.0F;
      }
      put_codes(codes_of<kStochastic>(y, random), message + row_offset(row) + lane_offset(lane));
    }
  }

  // The codes of a lane's numbers in a row.
  template <bool kStochastic>
  static __device__ __forceinline__ uint32_t codes_of(const float (&y)[kColumns],
                                                      const codec::wire::PhiloxWords& random) {
    if constexpr (!kStochastic && std::is_same_v<Element, codec::wire::Float8E4M3>) {
      return e4m3_pair(y[0], y[1]) | e4m3_pair(y[2], y[3]) << 16;
    } else {
      uint32_t codes = 0;
      NARROWCAST_UNROLL
      for (int column = 0; column < kColumns; ++column) {
        const uint32_t code =
            kStochastic ? Element::encode(y[column], random.word[column]) : Element::encode(y[column]);
        codes |= code << (column * kBits);
      }
      return codes;
    }
  }

  static __device__ __forceinline__ void put_codes(uint32_t codes, uint8_t* bytes) {
    constexpr int kWidth = kCodeBytes % kUnit == 0 ? kUnit : 1;
    using Part = std::conditional_t<kWidth == 1, uint8_t, uint16_t>;
    NARROWCAST_UNROLL
    for (int i = 0; i < kCodeBytes; i += kWidth) {
      store_vector(bytes + i, static_cast<Part>(codes >> (8 * i)));
    }
  }
};

// The codec of a tile in a float format, with the same functions as BlockTile.
template <class Format>
struct FloatTile {
  using Element = typename Format::Element;
  using Code = typename Element::Code;
  static constexpr int kUnit = sizeof(Code);
  static constexpr int kWords = kColumns * kUnit / 4;  // Words of a lane's codes in a row.

  static __device__ __forceinline__ int codes_offset(int row, int lane) {
    return (row * kRowElements + kColumns * lane) * kUnit;
  }

  static __device__ __forceinline__ void encode(const TileValues& x, const codec::wire::Rounding& rounding, int lane,
                                                uint8_t* message) {
    if (rounding.stochastic) {
      encode_rows<true>(x, rounding, lane, message);
    } else {
      encode_rows<false>(x, rounding, lane, message);
    }
  }

  template <class Sink>
  static __device__ __forceinline__ void decode(const uint8_t* staging, int offset, int lane, const Sink& sink) {
    NARROWCAST_UNROLL
    for (int row = 0; row < kRows; ++row) {
      const UnalignedWords<kWords> words(staging + row * kRowElements * kUnit, offset + codes_offset(0, lane));
      NARROWCAST_UNROLL
      for (int column = 0; column < kColumns; ++column) {
        const int bit = column * kUnit * 8;
        sink(row, column, value_of(static_cast<Code>(words.at[bit / 32] >> bit % 32)));
      }
    }
  }

  static __device__ __forceinline__ void add(const uint8_t* staging, int offset, int lane, TileValues& sum) {
    decode(staging, offset, lane, [&](int row, int column, float value) { sum.at[row][column] += value; });
  }

 private:
  static __device__ __forceinline__ float value_of(Code code) {
    if constexpr (std::is_same_v<Element, codec::wire::Binary16>) {
      return binary16_value(code);
    } else {
      return Element::decode(code);
    }
  }

  // Rounds to nearest.
  static __device__ __forceinline__ Code code_of(float value) {
    if constexpr (std::is_same_v<Element, codec::wire::Binary16>) {
      return value != value ? static_cast<Code>(Element::kNan) : binary16_bits(value);
    } else if constexpr (std::is_same_v<Element, codec::wire::Bfloat16>) {
      return value != value ? static_cast<Code>(codec::kQuietNanBits >> 16) : bfloat16_bits(value);
    } else {
      return Element::encode(value);
    }
  }

  template <bool kStochastic>
  static __device__ __forceinline__ void encode_rows(const TileValues& x, const codec::wire::Rounding& rounding,
                                                     int lane, uint8_t* message) {
    NARROWCAST_UNROLL
    for (int row = 0; row < kRows; ++row) {
      codec::wire::PhiloxWords random = {};
      if constexpr (kStochastic) {
        spare_registers();
        random = random_columns(rounding, row * kRowElements + kColumns * lane);
      }
      NARROWCAST_UNROLL
      for (int column = 0; column < kColumns; ++column) {
        const float value = x.at[row][column];
        const Code code = kStochastic ? Element::encode(value, random.word[column]) : code_of(value);
        store_vector(message + codes_offset(row, lane) + column * kUnit, code);
      }
    }
  }
};

}  // namespace narrowcast::cuda
