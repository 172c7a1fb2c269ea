// An array to its message: a tile per warp, in one pass over memory. Bounds of
// launches say for how many blocks an SM must have registers, so that its memory
// is never without a request.
#pragma once

#include "ops/cuda/wire/wire_arguments.h"
#include "ops/cuda/wire/wire_tile.cuh"

namespace narrowcast::cuda {

// With kFeedback there is a residual.
template <class Format, bool kFeedback>
__global__ void __launch_bounds__(kThreadsPerBlock, kFeedback ? 3 : 5)
    wire_encode_kernel(const __grid_constant__ EncodeArguments arguments) {
  __shared__ TileRoom<Format> rooms[kWarpsPerBlock];
  const WarpTile<Format> tile(arguments.n);
  if (tile.n <= 0) {
    return;
  }
  TileValues x;
  with_element(arguments.type, [&](auto element) { load(tile.template of<decltype(element)>(arguments.x), x); });
  TileRoom<Format>& room = rooms[threadIdx.x / kWarpSize];
  if constexpr (kFeedback) {
    send_with_residual(x, tile, arguments.rounding, arguments.residual, room, arguments.message);
  } else {
    send_tile(x, tile, arguments.rounding, room, arguments.message);
  }
}

}  // namespace narrowcast::cuda
