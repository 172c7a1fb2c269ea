// The kernels of variable_kernels.h. An encoder measures the blocks, searches the step (variable_search.cuh) and then
// knows all widths; a decoder reads them. Of these both make the offsets of words, chunk by chunk; and then warps write
// or read the codes, a tile each.
#pragma once

#include <cstdint>

#include "ops/codec/variable_width.h"
#include "ops/codec/wire_scale.h"
#include "ops/cuda/launch_arguments.h"
#include "ops/cuda/vectors.h"
#include "ops/cuda/wire/array_tile.cuh"
#include "ops/cuda/wire/message_tile.cuh"
#include "ops/cuda/wire/variable_kernels.h"
#include "ops/cuda/wire/variable_scratch.cuh"
#include "ops/cuda/wire/variable_search.cuh"
#include "ops/cuda/wire/variable_tile.cuh"

namespace narrowcast::cuda {

// What launches over tiles have per block of threads: a warp per tile.
inline constexpr int kTileWarps = 4;
inline constexpr int kTileThreads = kTileWarps * kWarpSize;

// The largest magnitude of each block. A warp per tile.
__global__ void __launch_bounds__(kTileThreads)
    variable_measure_kernel(const __grid_constant__ VariableEncoding encoding) {
  const auto lane = static_cast<int>(threadIdx.x % kWarpSize);
  const int64_t tile = int64_t{blockIdx.x} * kTileWarps + threadIdx.x / kWarpSize;
  if (tile >= encoding.chunks.tiles) {
    return;
  }
  const int64_t first = tile * kShardGrain;
  visit_float_type(encoding.arguments.type, [&](auto type) {
    constexpr FloatType kType = decltype(type)::value;
    const auto* const x = static_cast<const typename ArrayElement<kType>::Storage*>(encoding.arguments.x);
    measure_tile<kType>(x + first, encoding.arguments.n - first, lane, encoding.search.of_block + tile * kTileBlocks);
  });
}

// A round of the search. A block of threads per chunk.
__global__ void __launch_bounds__(kChunkThreads)
    variable_search_kernel(const __grid_constant__ VariableEncoding encoding, const int round) {
  const StepRange range = range_before(encoding, round);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    encoding.search.ranges[round] = range;
  }
  TriedSteps steps(range, encoding.arguments.rounding);
  const int64_t end = encoding.chunks.end(blockIdx.x) * kTileBlocks;  // Behind the last block there are zeros.
  for (int64_t i = encoding.chunks.begin(blockIdx.x) * kTileBlocks + threadIdx.x; i < end; i += kChunkThreads) {
    steps.count(encoding.search.of_block[i]);
  }
  send_counts(steps, round, encoding);
}

// Writes where the tiles of a chunk begin, and how many words it has. width_of(tile, exists) is called by all lanes of
// a warp for each of its tiles, and where there is none with `exists` false, and gives each lane a block's width. Once
// in a kernel.
template <class WidthOf>
__device__ __forceinline__ void place_chunk(const VariableChunks& chunks, const WordOffsets& offsets,
                                            const WidthOf& width_of) {
  __shared__ uint32_t words[2][kChunkWarps];  // Of the tiles of this turn and the last, which slow warps still read.
  const auto warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t end = chunks.end(blockIdx.x);
  int64_t sum = 0;
  int turn = 0;
  for (int64_t first = chunks.begin(blockIdx.x); first < end; first += kChunkWarps) {
    const int64_t tile = first + warp;
    const uint32_t of_tile = __reduce_add_sync(kAllLanes, width_of(tile, tile < end));
    if (threadIdx.x % kWarpSize == 0) {
      words[turn][warp] = of_tile;
    }
    __syncthreads();
    int64_t before = sum;
    NARROWCAST_UNROLL
    for (int i = 0; i < kChunkWarps; ++i) {
      before += i < warp ? words[turn][i] : 0U;
      sum += words[turn][i];
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

// The step and the widths of a message that is written. A block of threads per chunk.
__global__ void __launch_bounds__(kChunkThreads)
    variable_widths_kernel(const __grid_constant__ VariableEncoding encoding) {
  const uint32_t found = range_before(encoding, kSearchRounds).high;
  const bool is_nan = largest_of_all(encoding) > codec::wire::kGreatestMagnitudeBits;
  const uint32_t step = is_nan ? codec::wire::kNanScale : found;
  uint8_t* const message = encoding.arguments.message;
  if (blockIdx.x == 0 && threadIdx.x < codec::wire::kStepBytes) {
    message[threadIdx.x] = static_cast<uint8_t>(step >> (8 * threadIdx.x));
  }
  const codec::wire::StepCodes codes{inverse_of(step), encoding.arguments.rounding.stochastic};
  place_chunk(encoding.chunks, encoding.offsets, [&](int64_t tile, bool exists) {
    const int64_t block = tile * kTileBlocks + threadIdx.x % kWarpSize;
    const bool has_width = exists && !is_nan;
    const uint32_t width = has_width ? codes.width(codec::float_of_bits(encoding.search.of_block[block])) : 0U;
    const uint32_t nibble = codec::wire::nibble_of_width(width);
    const uint32_t next = __shfl_down_sync(kAllLanes, nibble, 1U);
    if (exists && block < encoding.layout.blocks && block % 2 == 0) {
      message[codec::wire::kStepBytes + block / 2] = static_cast<uint8_t>(nibble | next << 4);
    }
    return width;
  });
}

// Reads the widths of a message. A block of threads per chunk.
__global__ void __launch_bounds__(kChunkThreads)
    variable_offsets_kernel(const __grid_constant__ VariableDecoding decoding) {
  place_chunk(decoding.chunks, decoding.offsets, [&](int64_t tile, bool exists) {
    const int64_t block = tile * kTileBlocks + threadIdx.x % kWarpSize;
    return width_at(decoding.arguments.message, block, exists ? decoding.layout.blocks : 0);
  });
}

// Where chunks begin, from the words that they have. One warp.
__global__ void __launch_bounds__(kWarpSize) variable_chunks_kernel(const WordOffsets offsets, const int64_t chunks) {
  const auto lane = static_cast<int>(threadIdx.x);
  const int64_t each = (chunks + kWarpSize - 1) / kWarpSize;
  const int64_t begin = lane * each < chunks ? lane * each : chunks;
  const int64_t end = begin + each < chunks ? begin + each : chunks;
  int64_t words = 0;
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    words += offsets.of_chunk[chunk];
  }
  int64_t first = sum_before(words, lane);
  if (lane == kWarpSize - 1) {
    offsets.of_chunk[chunks] = first + words;
  }
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    const int64_t of_chunk = offsets.of_chunk[chunk];
    offsets.of_chunk[chunk] = first;
    first += of_chunk;
  }
}

// The words of a tile, to a buffer.
template <FloatType kType>
__device__ __forceinline__ void encode_tile(const VariableEncoding& encoding, const VariableTile& tile,
                                            uint32_t* words) {
  constexpr int kAtOnce = 8;
  const codec::wire::Rounding rounding = encoding.arguments.rounding.at(tile.first);
  const codec::wire::StepCodes codes{inverse_of(step_of(encoding.arguments.message)), rounding.stochastic};
  const auto* const x = static_cast<const typename ArrayElement<kType>::Storage*>(encoding.arguments.x) + tile.first;
  for (int first = 0; first < kTileBlocks; first += kAtOnce) {
    float values[kAtOnce];
    NARROWCAST_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      const int i = (first + k) * kWarpSize + tile.lane;
      values[k] = i < tile.n ? ArrayElement<kType>::load(x[i]) : 0.0F;
    }
    for_blocks<kAtOnce>(tile, first, [&](int k, uint32_t width, uint32_t word) {
      if (width == 0) {
        return;
      }
      const int i = (first + k) * kWarpSize + tile.lane;
      const float y = values[k] * codes.inverse;
      const int32_t code = rounding.stochastic ? codec::wire::variable_code(y, random_word_of(rounding, i))
                                               : codec::wire::variable_code(y);
      put_planes(code, width, tile.lane, words + word);
    });
  }
}

// Zeros from `begin` on, from all threads of the grid.
__device__ __forceinline__ void clear(uint8_t* begin, int64_t bytes) {
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < bytes; i += threads) {
    begin[i] = 0;
  }
}

// The codes of a message whose widths are known, and all behind them. A warp per tile.
__global__ void __launch_bounds__(kTileThreads)
    variable_encode_kernel(const __grid_constant__ VariableEncoding encoding) {
  __shared__ WordBuffer buffers[kTileWarps];
  uint8_t* const message = encoding.arguments.message;
  uint8_t* const codes = message + encoding.layout.first_word;
  const int64_t written = encoding.offsets.of_chunk[encoding.chunks.count] * codec::wire::kWordBytes;
  clear(codes + written, encoding.layout.bytes - encoding.layout.first_word - written);
  const VariableTile tile(message, encoding.arguments.n, encoding.layout.blocks, encoding.chunks, encoding.offsets);
  if (tile.n == 0) {
    return;
  }
  WordBuffer& buffer = buffers[threadIdx.x / kWarpSize];
  visit_float_type(encoding.arguments.type, [&](auto type) {
    encode_tile<decltype(type)::value>(encoding, tile, reinterpret_cast<uint32_t*>(buffer.bytes()));
  });
  __syncwarp();
  send_words(buffer.bytes(), tile.words() * static_cast<int>(codec::wire::kWordBytes), tile.lane,
             codes + tile.first_word * codec::wire::kWordBytes);
}

// The elements of a tile, of whose words the message has the first `readable`, at words[phase]. A block that ends
// behind them is NaN, and so are all behind it: where the message ends before the tile, `readable` is -1.
template <FloatType kType>
__device__ __forceinline__ void decode_tile(const VariableDecoding& decoding, const VariableTile& tile,
                                            const uint8_t* words, int phase, int readable) {
  using Element = ArrayElement<kType>;
  constexpr int kAtOnce = 8;
  const float step = codec::wire::scale_value(step_of(decoding.arguments.message));
  auto* const out = static_cast<typename Element::Storage*>(decoding.arguments.out) + tile.first;
  for (int first = 0; first < kTileBlocks; first += kAtOnce) {
    for_blocks<kAtOnce>(tile, first, [&](int k, uint32_t width, uint32_t word) {
      const bool is_whole = static_cast<int>(word + width) <= readable;
      const bool has_word = is_whole && static_cast<uint32_t>(tile.lane) < width;
      const int offset = phase + static_cast<int>(word + tile.lane) * static_cast<int>(codec::wire::kWordBytes);
      const uint32_t own = has_word ? UnalignedWords<1>(words, offset).at[0] : 0U;
      const int32_t code = code_of_planes(own, width, tile.lane);
      const int i = (first + k) * kWarpSize + tile.lane;
      if (i < tile.n) {
        out[i] =
            Element::store(is_whole ? step * static_cast<float>(code) : codec::float_of_bits(codec::kQuietNanBits));
      }
    });
  }
}

// A message whose words' offsets are known. A warp per tile.
__global__ void __launch_bounds__(kTileThreads)
    variable_decode_kernel(const __grid_constant__ VariableDecoding decoding) {
  __shared__ WordBuffer buffers[kTileWarps];
  const uint8_t* const message = decoding.arguments.message;
  const VariableTile tile(message, decoding.arguments.n, decoding.layout.blocks, decoding.chunks, decoding.offsets);
  if (tile.n == 0) {
    return;
  }
  const int words = tile.words();
  const int64_t left = decoding.layout.words - tile.first_word;
  const auto readable = static_cast<int>(left < 0 ? -1 : left < words ? left : words);
  const int bytes = readable > 0 ? readable * static_cast<int>(codec::wire::kWordBytes) : 0;
  const int64_t first_byte = bytes > 0 ? tile.first_word * codec::wire::kWordBytes : 0;
  uint8_t* const buffer = buffers[threadIdx.x / kWarpSize].bytes();
  const IncomingBytes<kMostTileBytes> incoming(message + decoding.layout.first_word + first_byte, bytes, tile.lane,
                                               buffer);
  incoming.wait();
  __syncwarp();
  visit_float_type(decoding.arguments.type, [&](auto type) {
    decode_tile<decltype(type)::value>(decoding, tile, buffer, incoming.lie.phase, readable);
  });
}

// Grids of blocks of threads.
inline int64_t tile_blocks(const VariableChunks& chunks) { return (chunks.tiles + kTileWarps - 1) / kTileWarps; }

// The launches of a message that is written, in order: calls launch(name, blocks, threads, kernel, arguments...).
template <class Launch>
void launch_encoding(const VariableEncoding& encoding, const Launch& launch) {
  const VariableChunks& chunks = encoding.chunks;
  launch("variable_measure_kernel", tile_blocks(chunks), kTileThreads, &variable_measure_kernel, encoding);
  for (int round = 0; round < kSearchRounds; ++round) {
    launch("variable_search_kernel", chunks.count, kChunkThreads, &variable_search_kernel, encoding, round);
  }
  launch("variable_widths_kernel", chunks.count, kChunkThreads, &variable_widths_kernel, encoding);
  launch("variable_chunks_kernel", int64_t{1}, kWarpSize, &variable_chunks_kernel, encoding.offsets, chunks.count);
  launch("variable_encode_kernel", tile_blocks(chunks), kTileThreads, &variable_encode_kernel, encoding);
}

// Those of one that is read.
template <class Launch>
void launch_decoding(const VariableDecoding& decoding, const Launch& launch) {
  const VariableChunks& chunks = decoding.chunks;
  launch("variable_offsets_kernel", chunks.count, kChunkThreads, &variable_offsets_kernel, decoding);
  launch("variable_chunks_kernel", int64_t{1}, kWarpSize, &variable_chunks_kernel, decoding.offsets, chunks.count);
  launch("variable_decode_kernel", tile_blocks(chunks), kTileThreads, &variable_decode_kernel, decoding);
}

}  // namespace narrowcast::cuda
