// Access to arrays in device memory, whose elements become float32 in registers.
//
// A warp works on a tile of kTile elements. Row k of a tile is elements 128 k to 128 k + 127; lane l holds the four
// elements from 128 k + 4 l on. So a row is read and written in one access per lane, side by side.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/codec/quantize_tensor.h"
#include "ops/codec/wire_elements.h"
#include "ops/cuda/launch/launch_arguments.h"
#include "ops/cuda/launch/vectors.h"

namespace narrowcast::cuda {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kAllLanes = ~0U;  // All lanes of a warp, for functions that take the lanes that wait for each
                                            // other.
inline constexpr int kRows = 8;
inline constexpr int kColumns = 4;  // Elements of a lane in a row.
inline constexpr int kRowElements = kWarpSize * kColumns;
inline constexpr int kTile = kRows * kRowElements;  // Starts a block in every wire format.

// A lane's elements of a tile.
struct TileValues {
  float at[kRows][kColumns];
};

// A barrier that saves registers: the compiler moves no access past it. Without one it would request all rows from
// memory at once, and run out of registers if there are other values to keep.
__device__ __forceinline__ void spare_registers() { __syncwarp(); }

// The storage type of an array's elements, and conversions to and from float32 that equal LibTorch's.
template <FloatType kType>
struct ArrayElement;

template <>
struct ArrayElement<FloatType::kFloat32> {
  using Storage = float;
  static __device__ __forceinline__ float load(float x) { return x; }
  static __device__ __forceinline__ float store(float x) { return x; }
};

template <>
struct ArrayElement<FloatType::kFloat64> {
  using Storage = double;
  static __device__ __forceinline__ float load(double x) { return static_cast<float>(x); }
  static __device__ __forceinline__ double store(float x) { return x; }
};

template <>
struct ArrayElement<FloatType::kBfloat16> {
  using Storage = uint16_t;
  static __device__ __forceinline__ float load(uint16_t x) { return codec::decode_bfp16(x); }
  static __device__ __forceinline__ uint16_t store(float x) { return bfloat16_bits(x); }
};

template <>
struct ArrayElement<FloatType::kFloat16> {
  using Storage = uint16_t;
  static __device__ __forceinline__ float load(uint16_t x) { return binary16_value(x); }
  static __device__ __forceinline__ uint16_t store(float x) { return binary16_bits(x); }
};

// A tile of an array, or the part of a tile that the array has.
template <FloatType kType>
struct ArrayTile {
  using Element = ArrayElement<kType>;
  using Storage = typename Element::Storage;
  using Row = Pack<Storage, kColumns>;

  Storage* mine;  // The lane's first element.
  int count;      // The number of elements from there to the array's end.
  bool whole;     // Whether all rows exist, and one access per lane can read or write each.

  __device__ __forceinline__ ArrayTile(const void* array, int64_t first, int n, int lane)
      : mine(static_cast<Storage*>(const_cast<void*>(array)) + first + kColumns * lane),
        count(n - kColumns * lane),
        whole(n == kTile && is_aligned<Row>(mine)) {}

  // Reads the lane's part of a row. If the tile may be incomplete (kWhole is false), elements beyond the array are read
  // as 0.
  template <bool kWhole>
  __device__ __forceinline__ void load_row(int row, float (&values)[kColumns]) const {
    if constexpr (kWhole) {
      const Row stored = load_vector<Row>(mine + row * kRowElements);
      NARROWCAST_UNROLL
      for (int column = 0; column < kColumns; ++column) {
        values[column] = Element::load(stored.values[column]);
      }
    } else {
      spare_registers();
      NARROWCAST_UNROLL
      for (int column = 0; column < kColumns; ++column) {
        const int i = row * kRowElements + column;
        values[column] = i < count ? Element::load(mine[i]) : 0.0F;
      }
    }
  }

  // Writes the lane's part of a row; memory beyond the array does not change.
  template <bool kWhole>
  __device__ __forceinline__ void store_row(int row, const float (&values)[kColumns]) const {
    if constexpr (kWhole) {
      Row stored;
      NARROWCAST_UNROLL
      for (int column = 0; column < kColumns; ++column) {
        stored.values[column] = Element::store(values[column]);
      }
      store_vector(mine + row * kRowElements, stored);
    } else {
      spare_registers();
      NARROWCAST_UNROLL
      for (int column = 0; column < kColumns; ++column) {
        const int i = row * kRowElements + column;
        if (i < count) {
          mine[i] = Element::store(values[column]);
        }
      }
    }
  }
};

// Calls body(row, whole) for every row. The constant `whole`, for load_row and store_row, is true if all the tiles are
// whole.
template <class Body, class... Tiles>
__device__ __forceinline__ void for_rows(const Body& body, const Tiles&... tiles) {
  if ((tiles.whole && ...)) {
    NARROWCAST_UNROLL
    for (int row = 0; row < kRows; ++row) {
      body(row, std::true_type());
    }
  } else {
    NARROWCAST_UNROLL
    for (int row = 0; row < kRows; ++row) {
      body(row, std::false_type());
    }
  }
}

// values = the tile's elements.
template <FloatType kType>
__device__ __forceinline__ void load(const ArrayTile<kType>& tile, TileValues& values) {
  const auto load_row = [&](int row, auto whole) {
    if (sizeof(typename ArrayTile<kType>::Storage) > sizeof(float) && row % 4 == 0) {
      spare_registers();
    }
    tile.template load_row<decltype(whole)::value>(row, values.at[row]);
  };
  for_rows(load_row, tile);
}

// The tile's elements = values.
template <FloatType kType>
__device__ __forceinline__ void store(const TileValues& values, const ArrayTile<kType>& tile) {
  for_rows([&](int row, auto whole) { tile.template store_row<decltype(whole)::value>(row, values.at[row]); }, tile);
}

// values += the tile's elements.
template <FloatType kType>
__device__ __forceinline__ void add(const ArrayTile<kType>& tile, TileValues& values) {
  const auto add_row = [&](int row, auto whole) {
    if (row % 4 == 0) {
      spare_registers();
    }
    float added[kColumns];
    tile.template load_row<decltype(whole)::value>(row, added);
    NARROWCAST_UNROLL
    for (int column = 0; column < kColumns; ++column) {
      values.at[row][column] += added[column];
    }
  };
  for_rows(add_row, tile);
}

}  // namespace narrowcast::cuda
