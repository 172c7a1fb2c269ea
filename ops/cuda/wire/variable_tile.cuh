// A warp's tile of a variable format: where the words of its blocks are, and how codes become words and back. A lane
// has an element of each block, and of the tile's widths that of one block.
#pragma once

#include <cstdint>

#include "ops/codec/variable_width.h"
#include "ops/codec/wire_rounding.h"
#include "ops/cuda/vectors.h"
#include "ops/cuda/wire/array_tile.cuh"
#include "ops/cuda/wire/message_tile.cuh"
#include "ops/cuda/wire/variable_scratch.cuh"

namespace narrowcast::cuda {

static_assert(codec::wire::kVariableBlock == kWarpSize && kTileBlocks == kWarpSize, "a lane has an element, a block");

// A tile's words at most, in bytes.
inline constexpr int kMostTileBytes = static_cast<int>(kTileBlocks * codec::wire::kMostWidth * codec::wire::kWordBytes);

// A warp's words: up to 15 bytes before them, and a word behind.
struct WordBuffer {
  Granule granules[kMostTileBytes / kGranule + 2];

  __device__ __forceinline__ uint8_t* bytes() { return reinterpret_cast<uint8_t*>(granules); }
};

// The sum of what the lanes before have.
template <class T>
__device__ __forceinline__ T sum_before(T value, int lane) {
  T sum = value;
  NARROWCAST_UNROLL
  for (int step = 1; step < kWarpSize; step *= 2) {
    const T of_before = __shfl_up_sync(kAllLanes, sum, static_cast<unsigned>(step));
    sum += lane >= step ? of_before : T{0};
  }
  return sum - value;
}

// The width of a block of a message, 0 where it has no such block.
__device__ __forceinline__ uint32_t width_at(const uint8_t* message, int64_t block, int64_t blocks) {
  return block < blocks ? codec::wire::width_of_nibble(codec::wire::nibble_at(message + codec::wire::kStepBytes, block))
                        : 0U;
}

__device__ __forceinline__ uint16_t step_of(const uint8_t* message) {
  return static_cast<uint16_t>(message[0] | message[1] << 8);
}

// The tile that the calling warp works on.
struct VariableTile {
  int lane;
  int64_t first;           // Element.
  int n = 0;               // Elements, at most kShardGrain; 0 for warps behind the array.
  uint32_t width = 0;      // Of the block that is the lane's.
  uint32_t word = 0;       // Where that begins, counted from the tile's first,
  int64_t first_word = 0;  // which is this one of the message.

  __device__ __forceinline__ VariableTile(const uint8_t* message, int64_t numel, int64_t blocks,
                                          const VariableChunks& chunks, const WordOffsets& offsets)
      : lane(static_cast<int>(threadIdx.x % kWarpSize)) {
    const int64_t tile = int64_t{blockIdx.x} * (blockDim.x / kWarpSize) + threadIdx.x / kWarpSize;
    first = tile * kShardGrain;
    if (tile < chunks.tiles) {
      n = static_cast<int>(numel - first < kShardGrain ? numel - first : kShardGrain);
      width = width_at(message, tile * kTileBlocks + lane, blocks);
      word = sum_before(width, lane);
      first_word = offsets.of_chunk[tile / chunks.each] + offsets.of_tile[tile];
    }
  }

  // Of all its blocks.
  __device__ __forceinline__ int words() const {
    return static_cast<int>(__shfl_sync(kAllLanes, word + width, kWarpSize - 1));
  }
};

// Calls body(k, width, word) for kCount of a tile's blocks, number `first` + k each.
template <int kCount, class Body>
__device__ __forceinline__ void for_blocks(const VariableTile& tile, int first, const Body& body) {
  NARROWCAST_UNROLL
  for (int k = 0; k < kCount; ++k) {
    body(k, __shfl_sync(kAllLanes, tile.width, first + k), __shfl_sync(kAllLanes, tile.word, first + k));
  }
}

// The random word of an element. A select instead of an index, which would put the words into local memory.
__device__ __forceinline__ uint32_t random_word_of(const codec::wire::Rounding& rounding, int64_t i) {
  const uint64_t position = rounding.position + static_cast<uint64_t>(i);
  const codec::wire::PhiloxWords words = codec::wire::random_words(rounding, position / 4);
  const uint32_t of_even = position % 4 < 2 ? words.word[0] : words.word[2];
  const uint32_t of_odd = position % 4 < 2 ? words.word[1] : words.word[3];
  return position % 2 == 0 ? of_even : of_odd;
}

// Writes the words of a block of `width` > 0, of which the lane has a code, to words[0..width).
__device__ __forceinline__ void put_planes(int32_t code, uint32_t width, int lane, uint32_t* words) {
  uint32_t own = 0;
  for (uint32_t plane = 0; plane < width; ++plane) {
    const uint32_t word =
        __ballot_sync(kAllLanes, static_cast<int>(static_cast<uint32_t>(code) >> (width - 1 - plane) & 1U));
    own = static_cast<uint32_t>(lane) == plane ? word : own;
  }
  if (static_cast<uint32_t>(lane) < width) {
    words[lane] = own;
  }
}

// The lane's code of such a block, where lane i has word i.
__device__ __forceinline__ int32_t code_of_planes(uint32_t own, uint32_t width, int lane) {
  uint32_t code = 0;
  for (uint32_t plane = 0; plane < width; ++plane) {
    const uint32_t bit = __shfl_sync(kAllLanes, own, static_cast<int>(plane)) >> lane & 1U;
    code = code << 1 | (plane == 0 ? 0U - bit : bit);  // The first plane is the sign's.
  }
  return static_cast<int32_t>(code);
}

// Copies `size` bytes, whole words, from the beginning of a buffer to wherever they go.
__device__ __forceinline__ void send_words(const uint8_t* words, int size, int lane, uint8_t* bytes) {
  const Granules lie(bytes, size);
  for (int granule = lane; granule < lie.whole; granule += kWarpSize) {
    const int offset = lie.head + granule * kGranule;
    const UnalignedWords<kGranule / 4> read(words, offset);
    Granule granule_words;
    NARROWCAST_UNROLL
    for (int i = 0; i < kGranule / 4; ++i) {
      granule_words.values[i] = read.at[i];
    }
    store_vector(bytes + offset, granule_words);
  }
  const int mine = lie.edge(lane);
  if (mine >= 0) {
    bytes[mine] = words[mine];
  }
}

}  // namespace narrowcast::cuda
