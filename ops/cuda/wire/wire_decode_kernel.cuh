// A message to its array: a tile per warp.
#pragma once

#include "ops/cuda/wire/wire_arguments.h"
#include "ops/cuda/wire/wire_tile.cuh"

namespace narrowcast::cuda {

template <class Format>
__global__ void __launch_bounds__(kThreadsPerBlock, 5)
    wire_decode_kernel(const __grid_constant__ DecodeArguments arguments) {
  __shared__ TileRoom<Format> rooms[kWarpsPerBlock];
  const WarpTile<Format> tile(arguments.n);
  if (tile.n <= 0) {
    return;
  }
  uint8_t* const room = rooms[threadIdx.x / kWarpSize].bytes();
  const IncomingBytes<kTileBytes<Format>> incoming(arguments.message + tile.first_byte, tile.bytes(), tile.lane, room);
  TileValues values;
  incoming.wait();
  __syncwarp();
  WireTile<Format>::decode(room, incoming.lie.phase, tile.lane,
                           [&](int row, int column, float value) { values.at[row][column] = value; });
  with_element(arguments.type,
               [&](auto element) { store(values, tile.template of<decltype(element)>(arguments.out)); });
}

}  // namespace narrowcast::cuda
