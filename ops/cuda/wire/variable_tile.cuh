// A warp's tile of a variable format: the positions of its blocks' words, and the conversion between codes and words. A
// lane has one element of each block, and the header of one block.
#pragma once

#include <cstdint>

#include "ops/codec/variable_headers.h"
#include "ops/codec/wire_rounding.h"
#include "ops/cuda/launch/vectors.h"
#include "ops/cuda/wire/array_tile.cuh"
#include "ops/cuda/wire/message_tile.cuh"
#include "ops/cuda/wire/variable_scratch.cuh"

namespace narrowcast::cuda {

static_assert(codec::wire::kVariableBlock == kWarpSize && kTileBlocks == kWarpSize, "a lane has an element, a block");

inline constexpr int kMostTileBytes = static_cast<int>(kTileBlocks * codec::wire::kMostWidth * codec::wire::kWordBytes);

// A tile's codes, up to 15 bytes before them, and one word after them.
struct CodeBuffer {
  Granule granules[kMostTileBytes / kGranule + 2];

  __device__ __forceinline__ uint8_t* bytes() { return reinterpret_cast<uint8_t*>(granules); }
};

// The sum of the values of all lower lanes.
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

// The header of a block of a message; 0, as for a block of zeros, if the message has no such block.
__device__ __forceinline__ uint32_t header_at(const uint8_t* message, int64_t block, int64_t blocks) {
  return block < blocks ? message[codec::wire::kStepBytes + block] : 0U;
}

// A message's data about a tile; a lane has the header of one block. It is loaded before it is needed.
struct TileHeader {
  uint32_t of_block = 0;
  int64_t bytes_before_chunk = 0;
  int64_t bytes_before_tile = 0;  // Counted from the chunk's first byte.
  uint16_t step = 0;

  TileHeader() = default;
  __device__ __forceinline__ TileHeader(const uint8_t* message, int64_t tile, int64_t blocks,
                                        const VariableChunks& chunks, const CodeOffsets& offsets)
      : of_block(header_at(message, tile * kTileBlocks + threadIdx.x % kWarpSize, blocks)),
        bytes_before_chunk(offsets.of_chunk[tile / chunks.each]),
        bytes_before_tile(offsets.of_tile[tile]),
        step(codec::wire::step_of_message(message)) {}

  // The step of the lane's block.
  __device__ __forceinline__ float block_step() const { return codec::wire::step_of_block(step, of_block); }
};

// The data that lanes exchange about their blocks, in one word: the width, the offset of the block, and the zero points
// of the block and of its pair's other block.
struct BlockWord {
  uint32_t bits;

  static __device__ __forceinline__ BlockWord of(uint32_t header, uint32_t word, int lane) {
    const auto zero_point = static_cast<uint32_t>(codec::wire::zero_point_of_header(header));
    const uint32_t both = zero_point << (lane % 2 == 0 ? kEven : kOdd);
    return {both | __shfl_xor_sync(kAllLanes, both, 1) | word << kWord | codec::wire::width_of_header(header)};
  }

  __device__ __forceinline__ uint32_t width() const { return bits & ((1U << kWord) - 1); }
  __device__ __forceinline__ uint32_t word() const { return bits >> kWord & ((1U << (kEven - kWord)) - 1); }
  // Zero points of the pair's blocks.
  __device__ __forceinline__ int32_t first_zero_point() const {
    return static_cast<int32_t>(bits >> kEven & ((1U << (kOdd - kEven)) - 1));
  }
  __device__ __forceinline__ int32_t second_zero_point() const { return static_cast<int32_t>(bits >> kOdd); }

  // The lowest bits of the fields.
  static constexpr int kWord = 4;
  static constexpr int kEven = 16;
  static constexpr int kOdd = 24;
  static_assert(codec::wire::kMostWidth < 1U << kWord);
  static_assert((kTileBlocks * codec::wire::kMostWidth) >> (kEven - kWord) == 0);
  static_assert(codec::wire::zero_point_of_width(codec::wire::kMostZeroPointWidth) >> (kOdd - kEven) == 0);
};

// The position of a tile's codes.
struct VariableTile {
  int lane;
  BlockWord of_lane;   // Its offset counts words from the tile's first word.
  int bytes;           // Bytes of the tile's codes.
  int64_t first_byte;  // Offset of the tile in the message's codes.

  __device__ __forceinline__ explicit VariableTile(const TileHeader& header)
      : lane(static_cast<int>(threadIdx.x % kWarpSize)),
        of_lane(BlockWord::of(header.of_block, sum_before(codec::wire::width_of_header(header.of_block), lane), lane)),
        bytes(static_cast<int>(__shfl_sync(kAllLanes, of_lane.word() + of_lane.width(), kWarpSize - 1) *
                               codec::wire::kWordBytes)),
        first_byte(header.bytes_before_chunk + header.bytes_before_tile) {}
};

// A square of bits; each lane has one row of it.
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

  // Transposes the square: bit i of lane j's result is bit j of lane i's row. Halves, quarters and so on are exchanged
  // crosswise (H. Warren, "Hacker's Delight", 7-3). All lanes of a warp call it.
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

// Two adjacent blocks, whose codes fit into a square as halves of its rows. Half of the lanes have the planes of the
// first block, the others those of the second.
struct BlockPair {
  BlockWord of_block;  // The block whose planes the lane has.
  uint32_t width;      // Width of that block.
  uint32_t word;       // Offset of that block.
  uint32_t plane;      // The plane of the lane; plane 0 holds the lowest bits.

  // `first` is even.
  __device__ __forceinline__ BlockPair(const VariableTile& tile, int first)
      : of_block{__shfl_sync(kAllLanes, tile.of_lane.bits, first + tile.lane / kPlanes)},
        width(of_block.width()),
        word(of_block.word()),
        plane(tile.lane % kPlanes) {}

  // The index in the tile of the word with that plane of the block. A block's first word is its highest plane, the
  // signs.
  __device__ __forceinline__ uint32_t word_of(uint32_t of_plane) const { return word + width - 1 - of_plane; }

  static constexpr int kPlanes = kWarpSize / 2;
};
static_assert(codec::wire::kMostWidth <= BlockPair::kPlanes, "two blocks fit a square");

// The random word of an element. Uses a select instead of an index, which would put the words into local memory.
__device__ __forceinline__ uint32_t random_word_of(const codec::wire::Rounding& rounding, int64_t i) {
  const uint64_t position = rounding.position + static_cast<uint64_t>(i);
  const codec::wire::PhiloxWords words = codec::wire::random_words(rounding, position / 4);
  const uint32_t of_even = position % 4 < 2 ? words.word[0] : words.word[2];
  const uint32_t of_odd = position % 4 < 2 ? words.word[1] : words.word[3];
  return position % 2 == 0 ? of_even : of_odd;
}

// Writes the words of two blocks; the lane passes one code of each. Zero points are added here.
__device__ __forceinline__ void put_codes(const BlockPair& pair, const BitSquare& square, int32_t first, int32_t second,
                                          uint32_t* words) {
  const auto stored_first = static_cast<uint32_t>(first + pair.of_block.first_zero_point());
  const auto stored_second = static_cast<uint32_t>(second + pair.of_block.second_zero_point());
  const uint32_t row = square.transposed((stored_first & 0xFFFFU) | stored_second << 16);
  if (pair.plane < pair.width) {
    words[pair.word_of(pair.plane)] = row;
  }
}

// The lane's codes of two blocks, without zero points.
struct CodePair {
  int32_t first;
  int32_t second;
};

// The codes of a tile in a buffer: they begin at buffer[phase].
struct BufferedCodes {
  const uint8_t* buffer;
  int phase;
};

// Reads the lane's codes of two blocks.
__device__ __forceinline__ CodePair take_codes(const BlockPair& pair, const BitSquare& square,
                                               const BufferedCodes& codes) {
  uint32_t plane = 0;  // A block without words has codes of 0.
  if (pair.width > 0) {
    // Planes above the sign's plane repeat it.
    const uint32_t word = pair.word_of(pair.plane < pair.width ? pair.plane : pair.width - 1);
    plane = UnalignedWords<1>(codes.buffer, codes.phase + static_cast<int>(word * codec::wire::kWordBytes)).at[0];
  }
  const uint32_t both = square.transposed(plane);
  return {static_cast<int16_t>(both & 0xFFFFU) - pair.of_block.first_zero_point(),
          static_cast<int16_t>(both >> 16) - pair.of_block.second_zero_point()};
}

// Copies `size` bytes from the beginning of a buffer, which has one more word after them, to any address.
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
