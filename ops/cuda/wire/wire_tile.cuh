// A warp's tile in any wire format: its codec, its elements, and how its message is sent.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/codec/wire_format.h"
#include "ops/codec/wire_rounding.h"
#include "ops/cuda/wire/array_tile.cuh"
#include "ops/cuda/wire/message_tile.cuh"
#include "ops/cuda/wire/tile_codecs.cuh"
#include "ops/cuda/wire/wire_kernels.h"

namespace narrowcast::cuda {

// The codec of a tile: encode, decode and add.
template <class Format>
using WireTile = typename std::conditional_t<Format::kHasBlocks, std::enable_if<true, BlockTile<Format>>,
                                             std::enable_if<true, FloatTile<Format>>>::type;

// Warps and threads per block of these launches: one warp per tile.
inline constexpr int kWarpsPerBlock = 4;
inline constexpr int kThreadsPerBlock = kWarpsPerBlock * kWarpSize;

static_assert(kTile == kWireGrain, "a shard must begin with a tile");

// Blocks of threads for n elements. If the array is cut into shards, each shard is a row of blocks, and this is the
// number for the longest shard, or for the longest chunk of one.
inline unsigned blocks_for(int64_t n, const Shards& shards = {}) {
  const int64_t tiles = shards.count > 1 || shards.of_chunk ? shards.most_grains() : (n + kTile - 1) / kTile;
  return static_cast<unsigned>((tiles + kWarpsPerBlock - 1) / kWarpsPerBlock);
}

// The calling warp's tile of an array of n elements, and the offset of its message.
template <class Format>
struct WarpTile {
  int lane;
  int64_t first;  // The index of the first element.
  int64_t first_byte;
  int n;  // The number of elements, at most kTile; 0 for warps beyond the array.

  __device__ __forceinline__ explicit WarpTile(int64_t numel, const Shards& shards = {})
      : lane(static_cast<int>(threadIdx.x % kWarpSize)) {
    int64_t tile = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarpSize;
    int64_t end = numel;
    first_byte = tile * kTileBytes<Format>;
    if (shards.count > 1 || shards.of_chunk) {
      const uint32_t shard = shards.shard_in(blockIdx.y);
      first_byte += blockIdx.y * shards.stride;
      const GrainRange tiles = shards.grains(shard);
      tile += tiles.begin;
      end = tiles.end * kTile < numel ? tiles.end * kTile : numel;
    }
    first = tile * kTile;
    n = static_cast<int>(end - first < kTile ? (end > first ? end - first : 0) : kTile);
  }

  // The size of the tile's message.
  __device__ __forceinline__ int bytes() const { return codec::wire::encoded_size<Format>(n); }

  // The tile of an array of this dtype.
  template <FloatType kType>
  __device__ __forceinline__ ArrayTile<kType> of(FloatTypeConstant<kType>, const void* array) const {
    return ArrayTile<kType>(array, first, n, lane);
  }

  // The tile of a float32 array.
  __device__ __forceinline__ auto of_float32(const float* array) const {
    return of(FloatTypeConstant<FloatType::kFloat32>(), array);
  }
};

// The destination of a warp's message.
template <class Format>
struct Outgoing {
  const WarpTile<Format>& tile;
  const codec::wire::Rounding& rounding;  // For the array's first element.
  uint8_t* message;                       // The array's message.
  StagingBuffer<Format>& staging;

  __device__ __forceinline__ uint8_t* bytes() const { return message + tile.first_byte; }

  // The offset of the tile's message in the staging buffer.
  __device__ __forceinline__ int offset() const { return outgoing_offset<WireTile<Format>::kUnit>(bytes()); }
};

// Encodes and sends x.
template <class Format>
__device__ __forceinline__ void send_tile(const TileValues& x, const Outgoing<Format>& to) {
  using Tile = WireTile<Format>;
  Tile::encode(x, to.rounding.at(to.tile.first), to.tile.lane, to.staging.bytes() + to.offset());
  __syncwarp();
  send<Tile::kUnit>(to.staging.bytes(), to.tile.bytes(), to.tile.lane, to.bytes());
}

// One bit for each of the lane's elements of a tile.
struct TileMask {
  uint32_t bits = 0;
  static_assert(kRows * kColumns == 32);

  __device__ __forceinline__ void set(int row, int column) { bits |= 1U << (row * kColumns + column); }
  __device__ __forceinline__ bool has(int row, int column) const {
    return (bits >> (row * kColumns + column) & 1U) != 0;
  }
  __device__ __forceinline__ bool has_row(int row) const {
    constexpr uint32_t kRow = (1U << kColumns) - 1;
    return (bits >> (row * kColumns) & kRow) == kRow;
  }
};

// Replaces the tile's residuals, unless they are null, by x minus its staged message, decoded, where the difference is
// finite. Returns the elements for which it is finite.
template <class Format>
__device__ __forceinline__ TileMask keep_residual(const TileValues& x, const Outgoing<Format>& to, float* residual) {
  const WarpTile<Format>& tile = to.tile;
  TileMask finite;
  WireTile<Format>::decode(to.staging.bytes(), to.offset(), tile.lane, [&](int row, int column, float received) {
    const int i = row * kRowElements + kColumns * tile.lane + column;
    const float lacking = x.at[row][column] - received;
    if (i < tile.n && codec::magnitude_bits(lacking) < codec::kInfBits) {
      finite.set(row, column);
      if (residual != nullptr) {
        residual[tile.first + i] = lacking;
      }
    }
  });
  return finite;
}

// Sets these elements of a float32 tile to 0.
__device__ __forceinline__ void clear(const ArrayTile<FloatType::kFloat32>& tile, const TileMask& elements) {
  NARROWCAST_UNROLL
  for (int row = 0; row < kRows; ++row) {
    if (tile.whole && elements.has_row(row)) {
      tile.store_row<true>(row, {});
      continue;
    }
    NARROWCAST_UNROLL
    for (int column = 0; column < kColumns; ++column) {
      if (elements.has(row, column)) {
        tile.mine[row * kRowElements + column] = 0;
      }
    }
  }
}

// Sends x + residual and keeps the difference between that sum and the message as the residual.
template <class Format>
__device__ __forceinline__ void send_with_residual(TileValues& x, const Outgoing<Format>& to, float* residual) {
  add(to.tile.of_float32(residual), x);
  send_tile(x, to);
  keep_residual(x, to, residual);
}

}  // namespace narrowcast::cuda
