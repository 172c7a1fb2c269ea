// The kernels of wire_kernels.h, with one warp per tile, in one pass over memory. They encode and decode arrays, and
// compute the mean of all ranks' parts, as an array or as a message, summed in registers in the order of ranks. The
// launch bounds are the number of blocks for which an SM must have registers, so that its memory always has a request.
#pragma once

#include <cstdint>

#include "ops/cuda/launch/launch_arguments.h"
#include "ops/cuda/launch/vectors.h"
#include "ops/cuda/wire/wire_kernels.h"
#include "ops/cuda/wire/wire_tile.cuh"

namespace narrowcast::cuda {

// Encodes an array. With kFeedback there is a residual.
template <class Format, bool kFeedback>
__global__ void __launch_bounds__(kThreadsPerBlock, kFeedback ? 3 : 6)
    wire_encode_kernel(const __grid_constant__ EncodeArguments arguments) {
  __shared__ StagingBuffer<Format> staging[kWarpsPerBlock];
  const WarpTile<Format> tile(arguments.n, arguments.shards);
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

// Decodes a message to its array.
template <class Format>
__global__ void __launch_bounds__(kThreadsPerBlock, 5)
    wire_decode_kernel(const __grid_constant__ DecodeArguments arguments) {
  __shared__ StagingBuffer<Format> buffers[kWarpsPerBlock];
  const WarpTile<Format> tile(arguments.n, arguments.shards);
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

// sum += the calling rank's own part and its residual.
template <FloatType kType, class Format>
__device__ __forceinline__ void add_own_with_residual(const RankParts& parts, const WarpTile<Format>& tile,
                                                      TileValues& sum) {
  const auto own = tile.of(FloatTypeConstant<kType>(), parts.own);
  const auto residual = tile.of_float32(parts.own_residual);
  const auto add_row = [&](int row, auto whole) {
    constexpr bool kWhole = decltype(whole)::value;
    spare_registers();
    float part[kColumns];
    float lacking[kColumns];
    own.template load_row<kWhole>(row, part);
    residual.template load_row<kWhole>(row, lacking);
    NARROWCAST_UNROLL
    for (int column = 0; column < kColumns; ++column) {
      sum.at[row][column] += part[column] + lacking[column];
    }
  };
  for_rows(add_row, own, residual);
}

// Calls change(value) for each of the lane's values.
template <class Change>
__device__ __forceinline__ void for_values(TileValues& values, const Change& change) {
  NARROWCAST_UNROLL
  for (int row = 0; row < kRows; ++row) {
    NARROWCAST_UNROLL
    for (int column = 0; column < kColumns; ++column) {
      change(values.at[row][column]);
    }
  }
}

// values /= divisor. The inverse of a power of two is exact and gives the same result. The test is outside of the loop,
// where the compiler would branch for each value.
__device__ __forceinline__ void divide(int64_t divisor, TileValues& values) {
  const auto number = static_cast<float>(divisor);
  if ((divisor & (divisor - 1)) == 0) {
    const float inverse = 1.0F / number;
    for_values(values, [inverse](float& value) { value *= inverse; });
  } else {
    for_values(values, [number](float& value) { value /= number; });
  }
}

// Two buffers: a warp decodes one message while it receives the next one into the other buffer.
template <class Format>
using TwoStagingBuffers = StagingBuffer<Format>[2];

// Ranks `begin` to `end` - 1.
struct RankRange {
  int64_t begin;
  int64_t end;
};

// sum += the messages of these ranks.
template <class Format>
__device__ __forceinline__ void add_messages(const RankParts& parts, RankRange ranks, const WarpTile<Format>& tile,
                                             TwoStagingBuffers<Format>& staging, TileValues& sum) {
  using Incoming = IncomingBytes<kTileBytes<Format>>;
  const auto request = [&](int64_t rank) {
    return Incoming(parts.message(rank) + tile.first_byte, tile.bytes(), tile.lane, staging[rank % 2].bytes());
  };
  if (ranks.begin >= ranks.end) {
    return;
  }
  __syncwarp();  // No lane reads the buffers any longer.
  Incoming incoming = request(ranks.begin);
  for (int64_t rank = ranks.begin; rank < ranks.end; ++rank) {
    incoming.wait();
    const int phase = incoming.lie.phase;
    __syncwarp();  // All lanes have read the buffer that is filled next.
    if (rank + 1 < ranks.end) {
      incoming = request(rank + 1);
    }
    WireTile<Format>::add(staging[rank % 2].bytes(), phase, tile.lane, sum);
  }
}

// Sets the values beyond the array's last element to 0. They are sums of bytes outside the messages, and must not
// influence a scale.
template <class Format>
__device__ __forceinline__ void clear_behind(const WarpTile<Format>& tile, TileValues& values) {
  NARROWCAST_UNROLL
  for (int row = 0; row < kRows; ++row) {
    NARROWCAST_UNROLL
    for (int column = 0; column < kColumns; ++column) {
      if (row * kRowElements + kColumns * tile.lane + column >= tile.n) {
        values.at[row][column] = 0;
      }
    }
  }
}

// The mean of the tile's elements; values beyond the last element are undefined.
template <class Format, bool kFeedback>
__device__ __forceinline__ void average_tile(const RankParts& parts, const WarpTile<Format>& tile,
                                             TwoStagingBuffers<Format>& staging, TileValues& mean) {
  NARROWCAST_UNROLL
  for (int row = 0; row < kRows; ++row) {
    NARROWCAST_UNROLL
    for (int column = 0; column < kColumns; ++column) {
      mean.at[row][column] = -0.0F;  // The only number that changes no other when it is added, not even -0.
    }
  }
  add_messages(parts, {0, parts.own_rank}, tile, staging, mean);
  if (parts.own_rank < parts.ranks) {
    visit_float_type(parts.type, [&](auto type) {
      if (kFeedback && parts.own_residual != nullptr) {
        add_own_with_residual<decltype(type)::value>(parts, tile, mean);
      } else {
        add(tile.of(type, parts.own), mean);
      }
    });
    add_messages(parts, {parts.own_rank + 1, parts.ranks}, tile, staging, mean);
  }
  divide(parts.divisor(), mean);
}

// Computes the mean as an array.
template <class Format>
__global__ void __launch_bounds__(kThreadsPerBlock, 5)
    wire_average_kernel(const __grid_constant__ AverageArguments arguments) {
  __shared__ TwoStagingBuffers<Format> staging[kWarpsPerBlock];
  const WarpTile<Format> tile(arguments.parts.n);
  if (tile.n <= 0) {
    return;
  }
  TileValues mean;
  average_tile<Format, false>(arguments.parts, tile, staging[threadIdx.x / kWarpSize], mean);
  visit_float_type(arguments.parts.type, [&](auto type) { store(mean, tile.of(type, arguments.mean)); });
}

// Sends the mean plus its residual. Then it replaces the mean's residual by the difference to the message, and the own
// residual, which the mean contains, by 0.
template <class Format>
__device__ __forceinline__ void send_mean_with_residuals(TileValues& mean, const Outgoing<Format>& to,
                                                         const AverageEncodeArguments& arguments) {
  const RankParts& parts = arguments.parts;
  if (arguments.mean_residual != nullptr) {
    add(to.tile.of_float32(arguments.mean_residual), mean);
  }
  send_tile(mean, to);
  const TileMask finite = keep_residual(mean, to, arguments.mean_residual);
  if (parts.own_residual != nullptr && parts.own_rank < parts.ranks) {
    clear(to.tile.of_float32(parts.own_residual), finite);
  }
}

// Computes the mean and encodes it. With kFeedback there may be residuals.
template <class Format, bool kFeedback>
__global__ void __launch_bounds__(kThreadsPerBlock, kFeedback ? 3 : 6)
    wire_average_encode_kernel(const __grid_constant__ AverageEncodeArguments arguments) {
  __shared__ TwoStagingBuffers<Format> buffers[kWarpsPerBlock];
  const WarpTile<Format> tile(arguments.parts.n);
  if (tile.n <= 0) {
    return;
  }
  TwoStagingBuffers<Format>& staging = buffers[threadIdx.x / kWarpSize];
  TileValues mean;
  average_tile<Format, kFeedback>(arguments.parts, tile, staging, mean);
  if (tile.n < kTile) {
    clear_behind(tile, mean);
  }
  __syncwarp();  // All lanes have read the buffers.
  const Outgoing<Format> to{tile, arguments.rounding, arguments.message, staging[0]};
  if constexpr (kFeedback) {
    send_mean_with_residuals(mean, to, arguments);
  } else {
    send_tile(mean, to);
  }
}

}  // namespace narrowcast::cuda
