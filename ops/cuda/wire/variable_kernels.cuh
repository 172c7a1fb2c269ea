// The kernels of variable_kernels.h, as templates so that several files can use them. An encoder measures the blocks,
// searches the step (variable_search.cuh) and then has all headers; a decoder reads the headers. Both then compute the
// offsets of the codes from the widths, chunk by chunk. Finally each warp writes or reads the codes of one tile.
#pragma once

#include <cstdint>

#include "ops/codec/variable_headers.h"
#include "ops/codec/variable_width.h"
#include "ops/codec/wire_scale.h"
#include "ops/cuda/launch/launch_arguments.h"
#include "ops/cuda/launch/vectors.h"
#include "ops/cuda/wire/array_tile.cuh"
#include "ops/cuda/wire/message_tile.cuh"
#include "ops/cuda/wire/variable_encode_tile.cuh"
#include "ops/cuda/wire/variable_kernels.h"
#include "ops/cuda/wire/variable_scratch.cuh"
#include "ops/cuda/wire/variable_search.cuh"
#include "ops/cuda/wire/variable_tile.cuh"

namespace narrowcast::cuda {

// Warps and threads per block in launches over tiles: one warp per tile.
inline constexpr int kTileWarps = 4;
inline constexpr int kTileThreads = kTileWarps * kWarpSize;

// Finds the extent of each block. One warp per tile.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) variable_measure_kernel(const __grid_constant__ VariableEncoding encoding) {
  const auto lane = static_cast<int>(threadIdx.x % kWarpSize);
  const int64_t tile = int64_t{blockIdx.x} * kTileWarps + threadIdx.x / kWarpSize;
  if (tile >= encoding.chunks.tiles) {
    return;
  }
  visit_source(encoding.arguments, tile, lane,
               [&](const auto& source) { measure_tile(source, encoding.search.of_block + tile * kTileBlocks); });
}

// Finds the largest magnitude of each chunk. One block of threads per chunk.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) variable_largest_kernel(const __grid_constant__ VariableEncoding encoding) {
  uint32_t largest = 0;
  visit_extents(encoding, [&](codec::wire::BlockExtent extent) {
    largest = extent.larger() > largest ? extent.larger() : largest;
  });
  send_largest(largest, encoding.search.of_chunk);
}

// One round of the search. One block of threads per chunk.
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    variable_search_kernel(const __grid_constant__ VariableEncoding encoding, const int round) {
  const StepRange range = range_before(encoding, round);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    encoding.search.ranges[round] = range;
  }
  TriedSteps steps(range, encoding.arguments);
  visit_extents(encoding, [&](codec::wire::BlockExtent extent) { steps.count(extent); });
  send_counts(steps, round, encoding);
}

// Writes the offsets of a chunk's tiles, and the chunk's number of bytes. header_of(block) returns the header of one of
// the message's `blocks`; one lane calls it for each block. Must be called once in a kernel.
template <class HeaderOf>
__device__ __forceinline__ void place_chunk(const VariableChunks& chunks, const CodeOffsets& offsets, int64_t blocks,
                                            const HeaderOf& header_of) {
  __shared__ uint32_t bytes[2][kChunkWarps];  // For this turn's tiles and the last turn's, which slow warps still read.
  const auto warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t end = chunks.end(blockIdx.x);
  int64_t sum = 0;
  int turn = 0;
  for (int64_t first = chunks.begin(blockIdx.x); first < end; first += kChunkWarps) {
    const int64_t tile = first + warp;
    const int64_t block = tile * kTileBlocks + threadIdx.x % kWarpSize;
    const bool exists = tile < end && block < blocks;
    const uint32_t width = exists ? codec::wire::width_of_header(header_of(block)) : 0U;
    const uint32_t words = __reduce_add_sync(kAllLanes, width);
    if (threadIdx.x % kWarpSize == 0) {
      bytes[turn][warp] = words * static_cast<uint32_t>(codec::wire::kWordBytes);
    }
    __syncthreads();
    int64_t before = sum;
    NARROWCAST_UNROLL
    for (int i = 0; i < kChunkWarps; ++i) {
      before += i < warp ? bytes[turn][i] : 0U;
      sum += bytes[turn][i];
    }
    if (threadIdx.x % kWarpSize == 0 && tile < end) {
      offsets.of_tile[tile] = before;
    }
    turn = 1 - turn;
  }
  if (threadIdx.x == 0) {
    offsets.of_chunk[blockIdx.x] = sum;
  }
}

// Writes the step and the headers of an encoded message. One block of threads per chunk.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) variable_headers_kernel(const __grid_constant__ VariableEncoding encoding) {
  const uint32_t found = range_before(encoding, kSearchRounds).high;
  const bool is_nan = largest_of_all(encoding) > codec::wire::kGreatestMagnitudeBits;
  const uint32_t step = is_nan ? codec::wire::kNanScale : found;
  uint8_t* const message = encoding.arguments.message;
  if (blockIdx.x == 0 && threadIdx.x < codec::wire::kStepBytes) {
    message[threadIdx.x] = static_cast<uint8_t>(step >> (8 * threadIdx.x));
  }
  const codec::wire::StepCodes codes = codes_of(step, encoding.arguments);
  place_chunk(encoding.chunks, encoding.offsets, encoding.layout.blocks, [&](int64_t block) {
    const uint32_t header = is_nan ? 0U : codes.header({encoding.search.of_block[block]});
    message[codec::wire::kStepBytes + block] = static_cast<uint8_t>(header);
    return header;
  });
}

// Reads the headers of all ranks' messages. One row of blocks per message, and in it one block per chunk.
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    variable_offsets_kernel(const __grid_constant__ VariableAveraging averaging) {
  if (blockIdx.y == averaging.arguments.parts.own_rank) {
    return;  // The calling rank has no message.
  }
  const uint8_t* const message = averaging.arguments.parts.message(blockIdx.y);
  place_chunk(averaging.chunks, averaging.offsets.of(blockIdx.y), averaging.layout.blocks,
              [&](int64_t block) { return uint32_t{message[codec::wire::kStepBytes + block]}; });
}

// Replaces the chunks' numbers of bytes by the offsets at which they begin. All lanes of a warp call it.
__device__ __forceinline__ void place_chunks(const CodeOffsets& offsets, int64_t chunks) {
  const auto lane = static_cast<int>(threadIdx.x);
  const int64_t each = (chunks + kWarpSize - 1) / kWarpSize;
  const int64_t begin = lane * each < chunks ? lane * each : chunks;
  const int64_t end = begin + each < chunks ? begin + each : chunks;
  int64_t bytes = 0;
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    bytes += offsets.of_chunk[chunk];
  }
  int64_t first = sum_before(bytes, lane);
  if (lane == kWarpSize - 1) {
    offsets.of_chunk[chunks] = first + bytes;
  }
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    const int64_t of_chunk = offsets.of_chunk[chunk];
    offsets.of_chunk[chunk] = first;
    first += of_chunk;
  }
}

// For the encoded message. One warp.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) variable_chunks_kernel(const __grid_constant__ VariableEncoding encoding) {
  place_chunks(encoding.offsets, encoding.chunks.count);
}

// For all ranks' messages. One warp per message.
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    variable_rank_chunks_kernel(const __grid_constant__ VariableAveraging averaging) {
  if (blockIdx.y != averaging.arguments.parts.own_rank) {
    place_chunks(averaging.offsets.of(blockIdx.y), averaging.chunks.count);
  }
}

// Writes zeros from `begin` on; all threads of the grid take part.
__device__ __forceinline__ void clear(uint8_t* begin, int64_t bytes) {
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < bytes; i += threads) {
    begin[i] = 0;
  }
}

// Sets a tile's elements of `spent` to 0, unless the message is NaN, which the step of the tile's first block shows.
__device__ __forceinline__ void clear_spent(const VariableEncodeArguments& arguments, int64_t tile,
                                            const BlockStep& of_lane) {
  const float step = __shfl_sync(kAllLanes, of_lane.value, 0);
  if (arguments.spent == nullptr || codec::magnitude_bits(step) > codec::kInfBits) {
    return;
  }
  NARROWCAST_UNROLL
  for (int k = 0; k < kTileBlocks; ++k) {
    const int64_t i = tile * kWireGrain + k * kWarpSize + threadIdx.x % kWarpSize;
    if (i < arguments.n) {
      arguments.spent[i] = 0;
    }
  }
}

// Writes the codes of a message whose headers are known, and the zeros after them. One warp per tile.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) variable_encode_kernel(const __grid_constant__ VariableEncoding encoding) {
  __shared__ CodeBuffer buffers[kTileWarps];
  uint8_t* const message = encoding.arguments.message;
  uint8_t* const codes = message + encoding.layout.first_code;
  const int64_t written = encoding.offsets.of_chunk[encoding.chunks.count];
  clear(codes + written, encoding.layout.code_bytes - written);
  const int64_t index = int64_t{blockIdx.x} * kTileWarps + threadIdx.x / kWarpSize;
  if (index >= encoding.chunks.tiles) {
    return;
  }
  const TileHeader header(message, index, encoding.layout.blocks, encoding.chunks, encoding.offsets);
  const VariableTile tile(header);
  // Computed before the elements are loaded: divisions are calls, across which few values can stay in registers.
  const BlockStep step(header);
  clear_spent(encoding.arguments, index, step);
  CodeBuffer& buffer = buffers[threadIdx.x / kWarpSize];
  visit_source(encoding.arguments, index, tile.lane, [&](const auto& source) {
    auto* const words = reinterpret_cast<uint32_t*>(buffer.bytes());
    const codec::wire::Rounding rounding = encoding.arguments.rounding.at(index * kWireGrain);
    if (rounding.stochastic) {
      encode_tile(source, tile, step, words,
                  [&](float y, int i) { return codec::wire::variable_code(y, random_word_of(rounding, i)); });
    } else {
      encode_tile(source, tile, step, words, [](float y, int /*i*/) { return codec::wire::variable_code(y); });
    }
  });
  __syncwarp();
  send_codes(buffer.bytes(), tile.bytes, tile.lane, codes + tile.first_byte);
}

// A lane's elements of a tile: one of each block.
struct TileSums {
  float at[kTileBlocks];
};

// sums += the elements of a tile. Each lane passes the step of its block.
__device__ __forceinline__ void add_tile(const VariableTile& tile, const BitSquare& square, const BufferedCodes& codes,
                                         float of_lane, TileSums& sums) {
  NARROWCAST_UNROLL
  for (int k = 0; k < kTileBlocks; k += 2) {
    const CodePair pair = take_codes(BlockPair(tile, k), square, codes);
    sums.at[k] += __shfl_sync(kAllLanes, of_lane, k) * static_cast<float>(pair.first);
    sums.at[k + 1] += __shfl_sync(kAllLanes, of_lane, k + 1) * static_cast<float>(pair.second);
  }
}

// The codes of a message.
struct MessageCodes {
  const uint8_t* first;
  int64_t bytes;
};

// sums += the tile's elements in one rank's message.
__device__ __forceinline__ void add_message(const MessageCodes& codes, const TileHeader& header,
                                            const BitSquare& square, CodeBuffer& buffer, TileSums& sums) {
  const VariableTile tile(header);
  // A tile that would end beyond the message is NaN, whatever is in the buffer.
  const bool is_whole = tile.first_byte + tile.bytes <= codes.bytes;
  // Computed before the wait, across which it takes one register less than its operands.
  const float step = is_whole ? header.block_step() : codec::float_of_bits(codec::kQuietNanBits);
  __syncwarp();  // No lane reads the buffer any longer.
  const IncomingBytes<kMostTileBytes> incoming(codes.first + (is_whole ? tile.first_byte : 0),
                                               is_whole ? tile.bytes : 0, tile.lane, buffer.bytes());
  incoming.wait();
  __syncwarp();
  add_tile(tile, square, {buffer.bytes(), incoming.lie.phase}, step, sums);
}

// sums += the calling rank's own part and its residual. The tile has `n` elements.
template <FloatType kType>
__device__ __forceinline__ void add_own(const VariableAverageArguments& arguments, int64_t tile, int n,
                                        TileSums& sums) {
  using Element = ArrayElement<kType>;
  const auto* const own =
      static_cast<const typename Element::Storage*>(arguments.parts.own) + arguments.own_places.element(tile);
  const float* const residual =
      arguments.parts.own_residual == nullptr ? nullptr : arguments.parts.own_residual + tile * kWireGrain;
  NARROWCAST_UNROLL
  for (int k = 0; k < kTileBlocks; ++k) {
    const int i = k * kWarpSize + static_cast<int>(threadIdx.x % kWarpSize);
    if (i >= n) {
      continue;
    }
    const float value = Element::load(own[i]);
    sums.at[k] += residual == nullptr ? value : value + residual[i];
  }
}

// Writes the sums, divided if the mean is asked for.
template <FloatType kType>
__device__ __forceinline__ void store_means(const VariableAverageArguments& arguments, int64_t tile, int n,
                                            const TileSums& sums) {
  using Element = ArrayElement<kType>;
  auto* const mean = static_cast<typename Element::Storage*>(arguments.mean) + arguments.mean_places.element(tile);
  const int64_t divisor = arguments.parts.divisor();
  const auto number = static_cast<float>(divisor);
  const auto store = [&](const auto& mean_of) {
    NARROWCAST_UNROLL
    for (int k = 0; k < kTileBlocks; ++k) {
      const int i = k * kWarpSize + static_cast<int>(threadIdx.x % kWarpSize);
      if (i < n) {
        mean[i] = Element::store(mean_of(sums.at[k]));
      }
    }
  };
  // A division takes ten times the instructions. For a power of two the reciprocal is exact, and so gives the same
  // result.
  if ((divisor & (divisor - 1)) == 0) {
    store([reciprocal = 1 / number](float sum) { return sum * reciprocal; });
  } else {
    store([number](float sum) { return sum / number; });
  }
}

// The mean of all ranks' parts, from messages whose codes' offsets are known. One warp per tile. With six blocks of
// threads per multiprocessor a thread has 80 registers, which suffice without spills.
template <int kThreads>
__global__ void __launch_bounds__(kThreads, 6)
    variable_average_kernel(const __grid_constant__ VariableAveraging averaging) {
  __shared__ CodeBuffer buffers[kTileWarps];
  const VariableAverageArguments& arguments = averaging.arguments;
  const int64_t tile = int64_t{blockIdx.x} * kTileWarps + threadIdx.x / kWarpSize;
  if (tile >= averaging.chunks.tiles) {
    return;
  }
  const int64_t left = arguments.parts.n - tile * kWireGrain;
  const auto n = static_cast<int>(left < kWireGrain ? left : kWireGrain);
  TileSums sums;
  NARROWCAST_UNROLL
  for (int k = 0; k < kTileBlocks; ++k) {
    sums.at[k] = -0.0F;  // The only number that changes no other when it is added, not even -0.
  }
  const BitSquare square(static_cast<int>(threadIdx.x % kWarpSize));
  const auto header_of = [&](int64_t rank) {
    const bool is_message = rank < arguments.parts.ranks && rank != arguments.parts.own_rank;
    return is_message ? TileHeader(arguments.parts.message(rank), tile, averaging.layout.blocks, averaging.chunks,
                                   averaging.offsets.of(rank))
                      : TileHeader();
  };
  TileHeader next = header_of(0);
  for (int64_t rank = 0; rank < arguments.parts.ranks; ++rank) {
    const TileHeader header = next;
    next = header_of(rank + 1);  // It is loaded at the same time as this rank's codes.
    if (rank == arguments.parts.own_rank) {
      visit_float_type(arguments.parts.type,
                       [&](auto type) { add_own<decltype(type)::value>(arguments, tile, n, sums); });
    } else {
      const MessageCodes codes{arguments.parts.message(rank) + averaging.layout.first_code,
                               averaging.layout.code_bytes};
      add_message(codes, header, square, buffers[threadIdx.x / kWarpSize], sums);
    }
  }
  visit_float_type(arguments.type, [&](auto type) { store_means<decltype(type)::value>(arguments, tile, n, sums); });
}

// The grid of a launch: rows of `blocks` blocks of threads.
struct LaunchGrid {
  int64_t blocks;
  int64_t rows;
  int threads;
};

inline LaunchGrid grid_of_tiles(const VariableChunks& chunks) {
  return {(chunks.tiles + kTileWarps - 1) / kTileWarps, 1, kTileThreads};
}

// The launches that encode a message, in order: calls launch(name, grid, kernel, arguments...).
template <class Launch>
void launch_encoding(const VariableEncoding& encoding, const Launch& launch) {
  const LaunchGrid tiles = grid_of_tiles(encoding.chunks);
  const LaunchGrid chunks{encoding.chunks.count, 1, kChunkThreads};
  launch("variable_measure_kernel", tiles, &variable_measure_kernel<kTileThreads>, encoding);
  launch("variable_largest_kernel", chunks, &variable_largest_kernel<kChunkThreads>, encoding);
  for (int round = 0; round < kSearchRounds; ++round) {
    launch("variable_search_kernel", chunks, &variable_search_kernel<kChunkThreads>, encoding, round);
  }
  launch("variable_headers_kernel", chunks, &variable_headers_kernel<kChunkThreads>, encoding);
  launch("variable_chunks_kernel", LaunchGrid{1, 1, kWarpSize}, &variable_chunks_kernel<kWarpSize>, encoding);
  launch("variable_encode_kernel", tiles, &variable_encode_kernel<kTileThreads>, encoding);
}

// The launches that compute a mean, in order.
template <class Launch>
void launch_averaging(const VariableAveraging& averaging, const Launch& launch) {
  const int64_t ranks = averaging.arguments.parts.ranks;
  launch("variable_offsets_kernel", LaunchGrid{averaging.chunks.count, ranks, kChunkThreads},
         &variable_offsets_kernel<kChunkThreads>, averaging);
  launch("variable_rank_chunks_kernel", LaunchGrid{1, ranks, kWarpSize}, &variable_rank_chunks_kernel<kWarpSize>,
         averaging);
  launch("variable_average_kernel", grid_of_tiles(averaging.chunks), &variable_average_kernel<kTileThreads>, averaging);
}

}  // namespace narrowcast::cuda
