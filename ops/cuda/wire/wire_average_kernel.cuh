// The mean of what all ranks sent, as an array or as its message: a tile per
// warp, summed in registers in the order of ranks, in one pass over memory.
#pragma once

#include "ops/cuda/wire/wire_arguments.h"
#include "ops/cuda/wire/wire_tile.cuh"

namespace narrowcast::cuda {

// sum += the calling rank's own part and its residual, which becomes 0.
template <class Element, class Format>
__device__ __forceinline__ void add_own_with_residual(const RankParts& parts, const WarpTile<Format>& tile,
                                                      TileValues& sum) {
  const ArrayTile<Element> own = tile.template of<Element>(parts.own);
  const ArrayTile<Float32> residual = tile.template of<Float32>(parts.own_residual);
  for_rows(own.whole && residual.whole, [&](int row, auto whole) {
    constexpr bool kWhole = decltype(whole)::value;
    spare_registers();
    float part[kColumns];
    float lacking[kColumns];
    own.template load_row<kWhole>(row, part);
    residual.template load_row<kWhole>(row, lacking);
    residual.template store_row<kWhole>(row, {});
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      sum.at[row][column] += part[column] + lacking[column];
    }
  });
}

// values /= ranks. A power of two has an exact inverse, and rounding is the same.
__device__ __forceinline__ void divide(int64_t ranks, TileValues& values) {
  const auto divisor = static_cast<float>(ranks);
  const bool exact = (ranks & (ranks - 1)) == 0;
  const float inverse = 1.0F / divisor;
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      float& value = values.at[row][column];
      value = exact ? value * inverse : value / divisor;
    }
  }
}

// A warp decodes one message while the next one comes into the other room.
template <class Format>
using TwoRooms = TileRoom<Format>[2];

// sum += the messages of ranks `begin` to `end` - 1.
template <class Format>
__device__ __forceinline__ void add_messages(const RankParts& parts, int64_t begin, int64_t end,
                                             const WarpTile<Format>& tile, TwoRooms<Format>& rooms, TileValues& sum) {
  using Incoming = IncomingBytes<kTileBytes<Format>>;
  const auto request = [&](int64_t rank) {
    return Incoming(parts.messages[rank] + tile.first_byte, tile.bytes(), tile.lane, rooms[rank % 2].bytes());
  };
  if (begin >= end) {
    return;
  }
  __syncwarp();  // Nobody reads the rooms any more.
  Incoming incoming = request(begin);
  for (int64_t rank = begin; rank < end; ++rank) {
    incoming.wait();
    const int phase = incoming.lie.phase;
    __syncwarp();  // All have read the room that is filled next.
    if (rank + 1 < end) {
      incoming = request(rank + 1);
    }
    WireTile<Format>::add(rooms[rank % 2].bytes(), phase, tile.lane, sum);
  }
}

// Sets what is behind the array's last element to 0: sums of bytes that are none of the messages', and no part of a
// scale.
template <class Format>
__device__ __forceinline__ void clear_behind(const WarpTile<Format>& tile, TileValues& values) {
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      if (row * kRowElements + kColumns * tile.lane + column >= tile.n) {
        values.at[row][column] = 0;
      }
    }
  }
}

// The mean of the tile's elements; behind them it is anything.
template <class Format, bool kFeedback>
__device__ __forceinline__ void average_tile(const RankParts& parts, const WarpTile<Format>& tile,
                                             TwoRooms<Format>& rooms, TileValues& mean) {
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      mean.at[row][column] = -0.0F;  // The number that changes no other, not even -0, when it is added.
    }
  }
  add_messages(parts, 0, parts.own_rank, tile, rooms, mean);
  if (parts.own_rank < parts.ranks) {
    with_element(parts.type, [&](auto element) {
      using Element = decltype(element);
      if (kFeedback && parts.own_residual != nullptr) {
        add_own_with_residual<Element>(parts, tile, mean);
      } else {
        add(tile.template of<Element>(parts.own), mean);
      }
    });
    add_messages(parts, parts.own_rank + 1, parts.ranks, tile, rooms, mean);
  }
  divide(parts.ranks, mean);
}

template <class Format>
__global__ void __launch_bounds__(kThreadsPerBlock, 5)
    wire_average_kernel(const __grid_constant__ AverageArguments arguments) {
  __shared__ TwoRooms<Format> rooms[kWarpsPerBlock];
  const WarpTile<Format> tile(arguments.parts.n);
  if (tile.n <= 0) {
    return;
  }
  TileValues mean;
  average_tile<Format, false>(arguments.parts, tile, rooms[threadIdx.x / kWarpSize], mean);
  with_element(arguments.parts.type,
               [&](auto element) { store(mean, tile.template of<decltype(element)>(arguments.mean)); });
}

// With kFeedback there may be residuals.
template <class Format, bool kFeedback>
__global__ void __launch_bounds__(kThreadsPerBlock, kFeedback ? 3 : 5)
    wire_average_encode_kernel(const __grid_constant__ AverageEncodeArguments arguments) {
  __shared__ TwoRooms<Format> all_rooms[kWarpsPerBlock];
  const WarpTile<Format> tile(arguments.parts.n);
  if (tile.n <= 0) {
    return;
  }
  TwoRooms<Format>& rooms = all_rooms[threadIdx.x / kWarpSize];
  TileValues mean;
  average_tile<Format, kFeedback>(arguments.parts, tile, rooms, mean);
  if (tile.n < kTile) {
    clear_behind(tile, mean);
  }
  __syncwarp();  // All have read the rooms.
  if (kFeedback && arguments.mean_residual != nullptr) {
    send_with_residual(mean, tile, arguments.rounding, arguments.mean_residual, rooms[0], arguments.message);
  } else {
    send_tile(mean, tile, arguments.rounding, rooms[0], arguments.message);
  }
}

}  // namespace narrowcast::cuda
