// An array to its message and back: a tile per warp, in one pass over memory. Bounds of launches say for how many
// blocks an SM must have registers, so that its memory is never without a request.
#pragma once

#include <cstdint>

#include "ops/cuda/launch_arguments.h"
#include "ops/cuda/wire/wire_kernels.h"
#include "ops/cuda/wire/wire_tile.cuh"

namespace narrowcast::cuda {

// An array to its message. With kFeedback there is a residual.
template <class Format, bool kFeedback>
__global__ void __launch_bounds__(kThreadsPerBlock, kFeedback ? 3 : 5)
    wire_encode_kernel(const __grid_constant__ EncodeArguments arguments) {
  __shared__ StagingBuffer<Format> staging[kWarpsPerBlock];
  const WarpTile<Format> tile(arguments.n);
  if (tile.n <= 0) {
    return;
  }
  TileValues x;
  visit_float_type(arguments.type, [&](auto type) { load(tile.of(type, arguments.x), x); });
  const Outgoing<Format> to{tile, arguments.rounding, arguments.message, staging[threadIdx.x / kWarpSize]};
  if constexpr (kFeedback) {
    send_with_residual(x, to, arguments.residual);
  } else {
    send_tile(x, to);
  }
}

// A message to its array.
template <class Format>
__global__ void __launch_bounds__(kThreadsPerBlock, 5)
    wire_decode_kernel(const __grid_constant__ DecodeArguments arguments) {
  __shared__ StagingBuffer<Format> buffers[kWarpsPerBlock];
  const WarpTile<Format> tile(arguments.n);
  if (tile.n <= 0) {
    return;
  }
  uint8_t* const staging = buffers[threadIdx.x / kWarpSize].bytes();
  const IncomingBytes<kTileBytes<Format>> incoming(arguments.message + tile.first_byte, tile.bytes(), tile.lane,
                                                   staging);
  TileValues values;
  incoming.wait();
  __syncwarp();
  WireTile<Format>::decode(staging, incoming.lie.phase, tile.lane,
                           [&](int row, int column, float value) { values.at[row][column] = value; });
  visit_float_type(arguments.type, [&](auto type) { store(values, tile.of(type, arguments.out)); });
}

}  // namespace narrowcast::cuda
