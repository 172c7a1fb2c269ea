// The codec of a warp's tile in any wire format.
#pragma once

#include <type_traits>

#include "ops/cuda/wire/block_tile.cuh"
#include "ops/cuda/wire/float_tile.cuh"
#include "ops/cuda/wire/wire_arguments.h"

namespace narrowcast::cuda {

template <class Format>
using WireTile = typename std::conditional_t<Format::kHasBlocks, std::enable_if<true, BlockTile<Format>>,
                                             std::enable_if<true, FloatTile<Format>>>::type;

inline constexpr int kWarpsPerBlock = 4;
inline constexpr int kThreadsPerBlock = kWarpsPerBlock * kWarpSize;

// The tile of an array of n elements that the calling warp works on, and where its message begins.
template <class Format>
struct WarpTile {
  int lane;
  int64_t first;  // Element.
  int64_t first_byte;
  int n;  // Elements, at most kTile; not above 0 for warps behind the array.

  __device__ __forceinline__ explicit WarpTile(int64_t numel) : lane(static_cast<int>(threadIdx.x % kWarpSize)) {
    const int64_t tile = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarpSize;
    first = tile * kTile;
    first_byte = tile * kTileBytes<Format>;
    n = static_cast<int>(numel - first < kTile ? (numel > first ? numel - first : 0) : kTile);
  }

  // Of the tile's message.
  __device__ __forceinline__ int bytes() const { return codec::wire::encoded_size<Format>(n); }

  // The tile of an array.
  template <class Element>
  __device__ __forceinline__ ArrayTile<Element> of(const void* array) const {
    return ArrayTile<Element>(array, first, n, lane);
  }
};

// Replaces a tile's residuals by what its message, at room + offset, lacks of x, where that is finite.
template <class Format>
__device__ __forceinline__ void keep_residual(const TileValues& x, const WarpTile<Format>& tile, const uint8_t* room,
                                              int offset, float* residual) {
  WireTile<Format>::decode(room, offset, tile.lane, [&](int row, int column, float received) {
    const int i = row * kRowElements + kColumns * tile.lane + column;
    const float lacking = x.at[row][column] - received;
    if (i < tile.n && codec::magnitude_bits(lacking) < codec::kInfBits) {
      residual[tile.first + i] = lacking;
    }
  });
}

// Sends x.
template <class Format>
__device__ __forceinline__ void send_tile(const TileValues& x, const WarpTile<Format>& tile, const Rounding& rounding,
                                          TileRoom<Format>& room, uint8_t* message) {
  using Tile = WireTile<Format>;
  uint8_t* const bytes = message + tile.first_byte;
  const int offset = outgoing_offset<Tile::kUnit>(bytes);
  Tile::encode(x, rounding.at(tile.first), tile.lane, room.bytes() + offset);
  __syncwarp();
  send<Tile::kUnit>(room.bytes(), tile.bytes(), tile.lane, bytes);
}

// Sends x + residual and keeps what the message lacks of it.
template <class Format>
__device__ __forceinline__ void send_with_residual(TileValues& x, const WarpTile<Format>& tile,
                                                   const Rounding& rounding, float* residual, TileRoom<Format>& room,
                                                   uint8_t* message) {
  add(tile.template of<Float32>(residual), x);
  send_tile(x, tile, rounding, room, message);
  const int offset = outgoing_offset<WireTile<Format>::kUnit>(message + tile.first_byte);
  keep_residual(x, tile, room.bytes(), offset, residual);
}

}  // namespace narrowcast::cuda
