// A warp's tile in a float format: a code by itself for each element.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/codec/wire_format.h"
#include "ops/codec/wire_rounding.h"
#include "ops/cuda/vectors.h"
#include "ops/cuda/wire/array_tile.cuh"
#include "ops/cuda/wire/message_tile.cuh"
#include "ops/cuda/wire/tile_numbers.cuh"

namespace narrowcast::cuda {

// The codec of a tile; its functions are BlockTile's.
template <class Format>
struct FloatTile {
  using Element = typename Format::Element;
  using Code = typename Element::Code;
  static constexpr int kUnit = sizeof(Code);
  static constexpr int kWords = kColumns * kUnit / 4;  // Of a lane in a row.

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
        const Code code = kStochastic ? Element::encode(value, random.word[column]) : Element::encode(value);
        store_vector(message + codes_offset(row, lane) + column * kUnit, code);
      }
    }
  }
};

}  // namespace narrowcast::cuda
