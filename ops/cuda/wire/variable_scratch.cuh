// Memory through which the kernels of variable_kernels.cuh pass results, and the division of a message among them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/codec/variable_headers.h"
#include "ops/cuda/wire/variable_kernels.h"
#include "ops/cuda/wire/wire_kernels.h"

namespace narrowcast::cuda {

inline constexpr int64_t kLeastChunk = 16;  // Tiles; a short message has a single chunk.
inline constexpr int64_t kMostChunks = 512;
inline constexpr int64_t kTileBlocks = kWireGrain / codec::wire::kVariableBlock;
static_assert(kTileBlocks == codec::wire::kGroupBlocks, "a tile is read as a whole or not at all");

// Each block of threads has a chunk of a message: adjacent tiles of kWireGrain elements. Each warp works on a tile.
struct VariableChunks {
  int64_t tiles;  // The last one may be shorter.
  int64_t each;   // Tiles of a chunk; the last chunk may have fewer.
  int64_t count;

  NARROWCAST_HOST_DEVICE int64_t begin(int64_t chunk) const { return chunk * each; }
  NARROWCAST_HOST_DEVICE int64_t end(int64_t chunk) const {
    return begin(chunk + 1) < tiles ? begin(chunk + 1) : tiles;
  }
};

// The chunks of n > 0 elements, with at least `least` tiles each.
inline VariableChunks variable_chunks(int64_t n, int64_t least = kLeastChunk) {
  const int64_t tiles = (n + kWireGrain - 1) / kWireGrain;
  const int64_t each = std::max(least, (tiles + kMostChunks - 1) / kMostChunks);
  return {tiles, each, (tiles + each - 1) / each};
}

// Positions of a message's codes, in bytes from the first code. In a received message they may be far beyond its end.
struct CodeOffsets {
  int64_t* of_chunk;  // First the bytes of each chunk, then the offset of each; after the last chunk, the sum.
  int64_t* of_tile;   // Counted from the first code of the tile's chunk.
};

// The search for the least step (variable_search.cuh) has kSearchRounds rounds, each of which tries kTriedSteps steps.
inline constexpr int kTriedSteps = 12;
inline constexpr int kSearchRounds = 3;

// The remaining bit patterns of steps: the least step that fits is one of them, and `high` fits.
struct StepRange {
  uint32_t low;
  uint32_t high;

  // The largest distances of a message's step below and above its largest number, in bit patterns. With a smaller step
  // that number has no code; with a step twice as large, every block fits in the codes of a faint block.
  static constexpr uint32_t kOctave = (uint32_t{1} << 23) / codec::wire::kScaleUnit;
  static constexpr uint32_t kFarthestBelow = (codec::wire::kMostWidth - 1) * kOctave;
  static constexpr uint32_t kFarthestAbove = kOctave;

  // All possible steps if `largest` is the largest BlockExtent::larger() of all blocks.
  NARROWCAST_HOST_DEVICE static StepRange of(uint32_t largest) {
    using codec::wire::kGreatestStep;
    using codec::wire::kLeastStep;
    const uint32_t number = largest / codec::wire::kScaleUnit;
    const uint32_t low = number > kLeastStep + kFarthestBelow ? number - kFarthestBelow : kLeastStep;
    const uint32_t high = number + kFarthestAbove > kLeastStep ? number + kFarthestAbove : kLeastStep;
    return {low, high < kGreatestStep ? high : kGreatestStep};
  }

  // The steps of a round in order, i < kTriedSteps. They are less than `high`, unless that equals `low`.
  NARROWCAST_HOST_DEVICE uint32_t tried(int i) const {
    return low + (high - low) * static_cast<uint32_t>(i + 1) / (kTriedSteps + 1);
  }

  // The remaining steps if the first `unfit` of the tried steps do not fit and the others do.
  NARROWCAST_HOST_DEVICE StepRange narrowed(int unfit) const {
    return {unfit == 0 ? low : tried(unfit - 1) + 1, unfit == kTriedSteps ? high : tried(unfit)};
  }
};

// Each round divides the distance between `low` and `high` by kStepParts, rounding down.
inline constexpr int kStepParts = kTriedSteps + 1;
static_assert(kSearchRounds == 3 &&
                  (StepRange::kFarthestBelow + StepRange::kFarthestAbove) / (kStepParts * kStepParts * kStepParts) == 0,
              "the last round must leave a single step");

// The results of the search.
struct StepSearch {
  int64_t* words;      // Words of all codes, in [round][tried step][chunk].
  StepRange* ranges;   // By round.
  uint32_t* of_chunk;  // The largest BlockExtent::larger() of each chunk.
  uint32_t* of_block;  // The bits of each block's BlockExtent.
};

// Consecutive parts of memory. With a null pointer it only counts bytes.
class ScratchParts {
 public:
  explicit ScratchParts(void* begin) : begin_(static_cast<uint8_t*>(begin)) {}

  // Takes the next part, which begins at a multiple of 8 bytes.
  template <class T>
  T* take(int64_t count) {
    T* const part = begin_ == nullptr ? nullptr : reinterpret_cast<T*>(begin_ + bytes_);
    bytes_ += (count * static_cast<int64_t>(sizeof(T)) + 7) / 8 * 8;
    return part;
  }

  CodeOffsets take_offsets(const VariableChunks& chunks) {
    int64_t* const of_chunk = take<int64_t>(chunks.count + 1);
    return {of_chunk, take<int64_t>(chunks.tiles)};
  }

  StepSearch take_search(const VariableChunks& chunks) {
    auto* const words = take<int64_t>(kSearchRounds * kTriedSteps * chunks.count);
    auto* const ranges = take<StepRange>(kSearchRounds);
    auto* const of_chunk = take<uint32_t>(chunks.count);
    return {words, ranges, of_chunk, take<uint32_t>(chunks.tiles * kTileBlocks)};
  }

  int64_t bytes() const { return bytes_; }

 private:
  uint8_t* begin_;
  int64_t bytes_ = 0;
};

// Arguments of the encoding kernels.
struct VariableEncoding {
  VariableEncodeArguments arguments;
  codec::wire::VariableLayout layout;
  VariableChunks chunks;
  CodeOffsets offsets;
  StepSearch search;
};

// The offsets of all ranks' messages.
struct RankOffsets {
  int64_t* first;
  int64_t chunks;
  int64_t tiles;

  NARROWCAST_HOST_DEVICE int64_t stride() const { return chunks + 1 + tiles; }
  NARROWCAST_HOST_DEVICE CodeOffsets of(int64_t rank) const {
    return {first + rank * stride(), first + rank * stride() + chunks + 1};
  }
};

struct VariableAveraging {
  VariableAverageArguments arguments;
  codec::wire::VariableLayout layout;
  VariableChunks chunks;
  RankOffsets offsets;
};

inline VariableEncoding encoding_of(const VariableEncodeArguments& arguments, const VariableChunks& chunks) {
  ScratchParts scratch(arguments.scratch);
  const CodeOffsets offsets = scratch.take_offsets(chunks);
  return {arguments, codec::wire::variable_layout(arguments.bits_per_element, arguments.n), chunks, offsets,
          scratch.take_search(chunks)};
}

inline VariableAveraging averaging_of(const VariableAverageArguments& arguments, const VariableChunks& chunks) {
  return {arguments,
          codec::wire::variable_layout(arguments.bits_per_element, arguments.parts.n),
          chunks,
          {static_cast<int64_t*>(arguments.scratch), chunks.count, chunks.tiles}};
}

inline int64_t encode_scratch(const VariableChunks& chunks) {
  ScratchParts counted(nullptr);
  counted.take_offsets(chunks);
  counted.take_search(chunks);
  return counted.bytes();
}

inline int64_t average_scratch(const VariableChunks& chunks, int64_t ranks) {
  return ranks * RankOffsets{nullptr, chunks.count, chunks.tiles}.stride() * static_cast<int64_t>(sizeof(int64_t));
}

}  // namespace narrowcast::cuda
