// A warp's tile of a variable format: where the words of its blocks are, and how codes become words and back. A lane
// has an element of each block, and of the tile's headers that of one block.
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

inline constexpr int kMostTileBytes = static_cast<int>(kTileBlocks * codec::wire::kMostWidth * codec::wire::kWordBytes);

// A tile's codes: up to 15 bytes before them, and a word behind.
struct CodeBuffer {
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

// The header of a block of a message; 0, as of zeros, where it has no such block.
__device__ __forceinline__ uint32_t header_at(const uint8_t* message, int64_t block, int64_t blocks) {
  return block < blocks ? message[codec::wire::kStepBytes + block] : 0U;
}

// What a message says of a tile, as it is read: a lane has the header of a block. Asked for before it is needed.
struct TileHeader {
  uint32_t of_block = 0;
  int64_t bytes_before_chunk = 0;
  int64_t bytes_before_tile = 0;  // Counted from the chunk's first.
  uint16_t step = 0;

  TileHeader() = default;
  __device__ __forceinline__ TileHeader(const uint8_t* message, int64_t tile, int64_t blocks,
                                        const VariableChunks& chunks, const CodeOffsets& offsets)
      : of_block(header_at(message, tile * kTileBlocks + threadIdx.x % kWarpSize, blocks)),
        bytes_before_chunk(offsets.of_chunk[tile / chunks.each]),
        bytes_before_tile(offsets.of_tile[tile]),
        step(codec::wire::step_of_message(message)) {}

  // The step of that block.
  __device__ __forceinline__ float block_step() const { return codec::wire::step_of_block(step, of_block); }
};

// Where a tile's codes are.
struct VariableTile {
  int lane;
  uint32_t width;      // Of the block that is the lane's.
  uint32_t word;       // Where that begins, counted from the tile's first.
  int bytes;           // Of the tile,
  int64_t first_byte;  // from this one of the message's codes on.

  __device__ __forceinline__ explicit VariableTile(const TileHeader& header)
      : lane(static_cast<int>(threadIdx.x % kWarpSize)),
        width(codec::wire::width_of_header(header.of_block)),
        word(sum_before(width, lane)),
        bytes(static_cast<int>(__shfl_sync(kAllLanes, word + width, kWarpSize - 1) * codec::wire::kWordBytes)),
        first_byte(header.bytes_before_chunk + header.bytes_before_tile) {}
};

// A square of bits, of which each lane has a row.
class BitSquare {
 public:
  __device__ __forceinline__ explicit BitSquare(int lane) {
    constexpr uint32_t kOfLowerRows[kExchanges] = {0x0000FFFFU, 0x00FF00FFU, 0x0F0F0F0FU, 0x33333333U, 0x55555555U};
    NARROWCAST_UNROLL
    for (int i = 0; i < kExchanges; ++i) {
      const bool is_upper_row = (lane & distance(i)) != 0;
      kept_[i] = is_upper_row ? ~kOfLowerRows[i] : kOfLowerRows[i];
      turn_[i] = static_cast<uint32_t>(is_upper_row ? distance(i) : kWarpSize - distance(i));
    }
  }

  // Bit i of what lane j gets is bit j of what lane i gives: halves, quarters and so on are exchanged crosswise
  // (H. Warren, "Hacker's Delight", 7-3). All of a warp call it.
  __device__ __forceinline__ uint32_t transposed(uint32_t row) const {
    NARROWCAST_UNROLL
    for (int i = 0; i < kExchanges; ++i) {
      const uint32_t other = __shfl_xor_sync(kAllLanes, row, distance(i));
      row = (row & kept_[i]) | (__funnelshift_r(other, other, turn_[i]) & ~kept_[i]);
    }
    return row;
  }

 private:
  static constexpr int kExchanges = 5;
  static_assert(1 << kExchanges == kWarpSize);

  __device__ static constexpr int distance(int exchange) { return kWarpSize / 2 >> exchange; }

  uint32_t kept_[kExchanges];
  uint32_t turn_[kExchanges];
};

// Two blocks next to each other, whose codes fit such a square as halves of its rows. Half of the lanes have the first
// one's planes, the others the second one's.
struct BlockPair {
  uint32_t width;  // Of the lane's block,
  uint32_t word;   // and where it begins.
  uint32_t plane;  // The lane's, the 1's first.

  __device__ __forceinline__ BlockPair(const VariableTile& tile, int first) : plane(tile.lane % kPlanes) {
    constexpr uint32_t kOneWord = codec::wire::kMostWidth + 1;  // Above all widths.
    const int block = first + tile.lane / kPlanes;
    const uint32_t both = __shfl_sync(kAllLanes, tile.word * kOneWord + tile.width, block);
    width = both % kOneWord;
    word = both / kOneWord;
  }

  // Which of the tile's words has that plane of a block; a block's first word is its highest plane, the sign's.
  __device__ __forceinline__ uint32_t word_of(uint32_t of_plane) const { return word + width - 1 - of_plane; }

  static constexpr int kPlanes = kWarpSize / 2;
};
static_assert(codec::wire::kMostWidth <= BlockPair::kPlanes, "two blocks fit a square");

// The random word of an element. A select instead of an index, which would put the words into local memory.
__device__ __forceinline__ uint32_t random_word_of(const codec::wire::Rounding& rounding, int64_t i) {
  const uint64_t position = rounding.position + static_cast<uint64_t>(i);
  const codec::wire::PhiloxWords words = codec::wire::random_words(rounding, position / 4);
  const uint32_t of_even = position % 4 < 2 ? words.word[0] : words.word[2];
  const uint32_t of_odd = position % 4 < 2 ? words.word[1] : words.word[3];
  return position % 2 == 0 ? of_even : of_odd;
}

// Writes the words of two blocks, of each of which the lane has a code.
__device__ __forceinline__ void put_codes(const BlockPair& pair, const BitSquare& square, int32_t first, int32_t second,
                                          uint32_t* words) {
  const uint32_t row =
      square.transposed((static_cast<uint32_t>(first) & 0xFFFFU) | static_cast<uint32_t>(second) << 16);
  if (pair.plane < pair.width) {
    words[pair.word_of(pair.plane)] = row;
  }
}

// The lane's codes of two blocks.
struct CodePair {
  int32_t first;
  int32_t second;
};

// Reads them from words[phase].
__device__ __forceinline__ CodePair take_codes(const BlockPair& pair, const BitSquare& square, const uint8_t* words,
                                               int phase) {
  uint32_t plane = 0;  // A block without words has codes of 0.
  if (pair.width > 0) {
    // Above the sign's plane there are more of it.
    const uint32_t word = pair.word_of(pair.plane < pair.width ? pair.plane : pair.width - 1);
    plane = UnalignedWords<1>(words, phase + static_cast<int>(word * codec::wire::kWordBytes)).at[0];
  }
  const uint32_t codes = square.transposed(plane);
  return {static_cast<int16_t>(codes & 0xFFFFU), static_cast<int16_t>(codes >> 16)};
}

// Copies `size` bytes from the beginning of a buffer, which has a word behind them, to wherever they go.
__device__ __forceinline__ void send_codes(const uint8_t* codes, int size, int lane, uint8_t* bytes) {
  const Granules lie(bytes, size);
  for (int granule = lane; granule < lie.whole; granule += kWarpSize) {
    const int offset = lie.head + granule * kGranule;
    const UnalignedWords<kGranule / 4> read(codes, offset);
    Granule granule_words;
    NARROWCAST_UNROLL
    for (int i = 0; i < kGranule / 4; ++i) {
      granule_words.values[i] = read.at[i];
    }
    store_vector(bytes + offset, granule_words);
  }
  const int mine = lie.edge(lane);
  if (mine >= 0) {
    bytes[mine] = codes[mine];
  }
}

}  // namespace narrowcast::cuda
