// The least step with which the codes of all blocks fit their message: the codec's (ops/codec/variable_width.h).
//
// The extent of each block is found first, then the largest of each chunk. Then there are kSearchRounds rounds, each a
// launch: they try kTriedSteps steps that divide the range that is left. A block of threads counts for each of them the
// words of the codes of its chunk; the next launch adds the chunks up, and knows which part of the range is left.
#pragma once

#include <cstdint>

#include "ops/codec/variable_headers.h"
#include "ops/codec/wire_rounding.h"
#include "ops/codec/wire_scale.h"
#include "ops/cuda/wire/array_tile.cuh"
#include "ops/cuda/wire/variable_scratch.cuh"

namespace narrowcast::cuda {

// What launches over chunks have per block of threads.
inline constexpr int kChunkWarps = 8;
inline constexpr int kChunkThreads = kChunkWarps * kWarpSize;

static_assert(kTriedSteps < kWarpSize, "a lane judges a step");

// The sum over a warp's lanes; all get it.
__device__ __forceinline__ int64_t sum_of_lanes(int64_t value) {
  NARROWCAST_UNROLL
  for (int bit = 1; bit < kWarpSize; bit *= 2) {
    value += __shfl_xor_sync(kAllLanes, value, bit);
  }
  return value;
}

// What a step's bits say.
__device__ __forceinline__ codec::wire::StepCodes codes_of(uint32_t step, const VariableEncodeArguments& arguments) {
  return codec::wire::StepCodes::of(static_cast<uint16_t>(step), arguments.rounding.stochastic);
}

// The largest BlockExtent::larger() of all, for all lanes. Behind the launch that finds those of chunks.
__device__ __forceinline__ uint32_t largest_of_all(const VariableEncoding& encoding) {
  uint32_t largest = 0;
  for (int64_t chunk = threadIdx.x % kWarpSize; chunk < encoding.chunks.count; chunk += kWarpSize) {
    const uint32_t of_chunk = encoding.search.of_chunk[chunk];
    largest = of_chunk > largest ? of_chunk : largest;
  }
  return __reduce_max_sync(kAllLanes, largest);
}

// Whether the codes fit if with this step they have so many words.
__device__ __forceinline__ bool fits(const VariableEncoding& encoding, uint32_t step, uint32_t largest, int64_t words) {
  const codec::wire::StepCodes codes = codes_of(step, encoding.arguments);
  return codes.has_code(codec::float_of_bits(largest) * codes.inverse) &&
         words * codec::wire::kWordBytes <= encoding.layout.code_bytes;
}

// The steps that are left before round `round`, from those before the last one and what that has counted. All threads
// of a block call it, once in a kernel.
__device__ __forceinline__ StepRange range_before(const VariableEncoding& encoding, int round) {
  __shared__ int64_t words[kTriedSteps];
  const uint32_t largest = largest_of_all(encoding);
  if (round == 0) {
    return StepRange::of(largest);
  }
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t chunks = encoding.chunks.count;
  for (int i = static_cast<int>(threadIdx.x) / kWarpSize; i < kTriedSteps; i += kChunkWarps) {
    const int64_t* const of_chunk = encoding.search.words + ((round - 1) * kTriedSteps + i) * chunks;
    int64_t sum = 0;
    for (int64_t chunk = lane; chunk < chunks; chunk += kWarpSize) {
      sum += of_chunk[chunk];
    }
    sum = sum_of_lanes(sum);
    if (lane == 0) {
      words[i] = sum;
    }
  }
  __syncthreads();
  const StepRange range = encoding.search.ranges[round - 1];
  const bool is_unfit = lane < kTriedSteps && !fits(encoding, range.tried(lane), largest, words[lane]);
  return range.narrowed(static_cast<int>(__reduce_add_sync(kAllLanes, is_unfit ? 1U : 0U)));
}

// A tile of what is written, n elements; the lane has one of each block.
template <FloatType kType, bool kFeedback>
struct TileSource {
  const typename ArrayElement<kType>::Storage* x;
  float* residual;  // Of the tile, with kFeedback.
  int n;
  int lane;

  __device__ __forceinline__ TileSource(const VariableEncodeArguments& arguments, int64_t tile, int of_lane)
      : x(static_cast<const typename ArrayElement<kType>::Storage*>(arguments.x) + arguments.places.element(tile)),
        residual(kFeedback ? arguments.residual + tile * kShardGrain : nullptr),
        n(static_cast<int>(arguments.n - tile * kShardGrain < kShardGrain ? arguments.n - tile * kShardGrain
                                                                          : kShardGrain)),
        lane(of_lane) {}

  // The lane's element of a block; 0 behind the last one.
  __device__ __forceinline__ float at(int block) const {
    const int i = block * kWarpSize + lane;
    if (i >= n) {
      return 0;
    }
    const float value = ArrayElement<kType>::load(x[i]);
    return kFeedback ? value + residual[i] : value;
  }

  static constexpr bool kHasResidual = kFeedback;

  // Replaces its residual, where there is any, by what `received` lacks of it, unless that is not finite.
  __device__ __forceinline__ void keep_lacking(int block, float value, float received) const {
    const int i = block * kWarpSize + lane;
    const float lacking = value - received;
    if (kFeedback && i < n && codec::magnitude_bits(lacking) < codec::kInfBits) {
      residual[i] = lacking;
    }
  }
};

// Calls body(source) for a tile. What all elements have in common is asked once: asked for each of them it would be a
// branch between their loads.
template <class Body>
__device__ __forceinline__ void visit_source(const VariableEncodeArguments& arguments, int64_t tile, int lane,
                                             const Body& body) {
  visit_float_type(arguments.type, [&](auto type) {
    constexpr FloatType kType = decltype(type)::value;
    if (arguments.residual == nullptr) {
      body(TileSource<kType, false>(arguments, tile, lane));
    } else {
      body(TileSource<kType, true>(arguments, tile, lane));
    }
  });
}

// Writes the extents of a tile's blocks; that of zeros behind the last one.
template <class Source>
__device__ __forceinline__ void measure_tile(const Source& source, uint32_t* of_block) {
  uint32_t bits[kTileBlocks];  // All are under way at a time.
  NARROWCAST_UNROLL
  for (int k = 0; k < kTileBlocks; ++k) {
    bits[k] = codec::float_bits(source.at(k));
  }
  // As signed integers the largest bits are those of the largest positive number, as unsigned ones those of the
  // negative number of the largest magnitude; if there are any.
  int32_t most = 0;
  uint32_t least = 0;
  NARROWCAST_UNROLL
  for (int k = 0; k < kTileBlocks; ++k) {
    const int32_t most_of_block = __reduce_max_sync(kAllLanes, static_cast<int32_t>(bits[k]));
    const uint32_t least_of_block = __reduce_max_sync(kAllLanes, bits[k]);
    most = source.lane == k ? most_of_block : most;
    least = source.lane == k ? least_of_block : least;
  }
  const uint32_t positive = most > 0 ? static_cast<uint32_t>(most) : 0U;
  const uint32_t negative = least > codec::kSignBit ? least - codec::kSignBit : 0U;
  of_block[source.lane] = codec::wire::BlockExtent::of(positive, negative).bits;
}

// Calls count(extent) for the blocks of a chunk that are the thread's.
template <class Count>
__device__ __forceinline__ void visit_extents(const VariableEncoding& encoding, const Count& count) {
  const int64_t end = encoding.chunks.end(blockIdx.x) * kTileBlocks;  // Behind the last block there are zeros.
  for (int64_t i = encoding.chunks.begin(blockIdx.x) * kTileBlocks + threadIdx.x; i < end; i += kChunkThreads) {
    count(codec::wire::BlockExtent{encoding.search.of_block[i]});
  }
}

// Writes the largest of a chunk from the largest that each thread of a block has. Once in a kernel.
__device__ __forceinline__ void send_largest(uint32_t of_thread, uint32_t* of_chunk) {
  __shared__ uint32_t of_warps[kChunkWarps];
  const uint32_t of_warp = __reduce_max_sync(kAllLanes, of_thread);
  if (threadIdx.x % kWarpSize == 0) {
    of_warps[threadIdx.x / kWarpSize] = of_warp;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t all = 0;
    for (const uint32_t largest : of_warps) {
      all = largest > all ? largest : all;
    }
    of_chunk[blockIdx.x] = all;
  }
}

// What StepCodes::width_of() takes of a step.
struct TriedStep {
  float inverse;
  uint32_t least_faint;
};

// A thread's words with the steps of a round. The sum of a warp's threads stays below 2^32 up to 2^41 elements, as a
// warp has no more than one of kMostChunks * kChunkWarps parts of all blocks, and a block, be its width never so far
// beyond kMostWidth, less than 2^8 words.
struct TriedSteps {
  TriedStep tried[kTriedSteps];
  float reach;
  uint32_t words[kTriedSteps] = {};

  // All of a warp call it: a lane divides for one of the steps.
  __device__ __forceinline__ TriedSteps(const StepRange& range, const VariableEncodeArguments& arguments)
      : reach(codec::wire::StepCodes::reach(arguments.rounding.stochastic)) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const codec::wire::StepCodes codes = codes_of(range.tried(lane < kTriedSteps ? lane : 0), arguments);
    NARROWCAST_UNROLL
    for (int i = 0; i < kTriedSteps; ++i) {
      tried[i] = {__shfl_sync(kAllLanes, codes.inverse, i), __shfl_sync(kAllLanes, codes.least_faint, i)};
    }
  }

  __device__ __forceinline__ void count(codec::wire::BlockExtent extent) {
    NARROWCAST_UNROLL
    for (int i = 0; i < kTriedSteps; ++i) {
      words[i] += codec::wire::StepCodes::width_of(extent, tried[i].inverse, tried[i].least_faint, reach);
    }
  }
};

// Adds up what all threads of a block have, and writes it. Once in a kernel.
__device__ __forceinline__ void send_counts(const TriedSteps& steps, int round, const VariableEncoding& encoding) {
  __shared__ int64_t words[kChunkWarps][kTriedSteps];
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  NARROWCAST_UNROLL
  for (int i = 0; i < kTriedSteps; ++i) {
    const uint32_t of_warp = __reduce_add_sync(kAllLanes, steps.words[i]);
    if (threadIdx.x % kWarpSize == 0) {
      words[warp][i] = of_warp;
    }
  }
  __syncthreads();
  const auto i = static_cast<int>(threadIdx.x);
  if (i < kTriedSteps) {
    int64_t sum = 0;
    for (int of = 0; of < kChunkWarps; ++of) {
      sum += words[of][i];
    }
    encoding.search.words[(round * kTriedSteps + i) * encoding.chunks.count + blockIdx.x] = sum;
  }
}

}  // namespace narrowcast::cuda
