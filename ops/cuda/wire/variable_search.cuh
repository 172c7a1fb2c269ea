// Searches the least step with which the codes of all blocks fit their message, as defined by
// ops/codec/variable_width.h.
//
// First kernels find the extent of each block and the largest magnitude of each chunk. Then there are kSearchRounds
// rounds, each a launch. A round tries kTriedSteps steps that divide the remaining range: for each of them, a block of
// threads counts the words of the codes of its chunk. The next launch sums over the chunks and narrows the range.
#pragma once

#include <cstdint>

#include "ops/codec/variable_headers.h"
#include "ops/codec/wire_rounding.h"
#include "ops/codec/wire_scale.h"
#include "ops/cuda/wire/array_tile.cuh"
#include "ops/cuda/wire/variable_scratch.cuh"

namespace narrowcast::cuda {

// Warps and threads per block in launches over chunks.
inline constexpr int kChunkWarps = 8;
inline constexpr int kChunkThreads = kChunkWarps * kWarpSize;

static_assert(kTriedSteps < kWarpSize, "a lane judges a step");

// The sum over a warp's lanes, returned to all of them.
__device__ __forceinline__ int64_t sum_of_lanes(int64_t value) {
  NARROWCAST_UNROLL
  for (int bit = 1; bit < kWarpSize; bit *= 2) {
    value += __shfl_xor_sync(kAllLanes, value, bit);
  }
  return value;
}

// The codec's description of a step.
__device__ __forceinline__ codec::wire::StepCodes codes_of(uint32_t step, const VariableEncodeArguments& arguments) {
  return codec::wire::StepCodes::of(static_cast<uint16_t>(step), arguments.rounding);
}

// The largest BlockExtent::larger() of all blocks, for all lanes. Needs the results of variable_largest_kernel.
__device__ __forceinline__ uint32_t largest_of_all(const VariableEncoding& encoding) {
  uint32_t largest = 0;
  for (int64_t chunk = threadIdx.x % kWarpSize; chunk < encoding.chunks.count; chunk += kWarpSize) {
    const uint32_t of_chunk = encoding.search.of_chunk[chunk];
    largest = of_chunk > largest ? of_chunk : largest;
  }
  return __reduce_max_sync(kAllLanes, largest);
}

// Whether the codes fit, if they have `words` words with this step.
__device__ __forceinline__ bool fits(const VariableEncoding& encoding, uint32_t step, uint32_t largest, int64_t words) {
  const codec::wire::StepCodes codes = codes_of(step, encoding.arguments);
  return codes.has_code(codec::float_of_bits(largest) * codes.inverse) &&
         words * codec::wire::kWordBytes <= encoding.layout.code_bytes;
}

// The remaining steps before round `round`, from the steps before the previous round and that round's counts. All
// threads of a block call it, once in a kernel.
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

// A tile of an encoded array, n elements; a lane has one element of each block.
template <FloatType kType, bool kFeedback>
struct TileSource {
  const typename ArrayElement<kType>::Storage* x;
  float* residual;  // The tile's, with kFeedback.
  int n;
  int lane;

  __device__ __forceinline__ TileSource(const VariableEncodeArguments& arguments, int64_t tile, int of_lane)
      : x(static_cast<const typename ArrayElement<kType>::Storage*>(arguments.x) + arguments.places.element(tile)),
        residual(kFeedback ? arguments.residual + tile * kWireGrain : nullptr),
        n(static_cast<int>(arguments.n - tile * kWireGrain < kWireGrain ? arguments.n - tile * kWireGrain
                                                                        : kWireGrain)),
        lane(of_lane) {}

  // The lane's element of a block; 0 beyond the last element.
  __device__ __forceinline__ float at(int block) const {
    const int i = block * kWarpSize + lane;
    if (i >= n) {
      return 0;
    }
    const float value = ArrayElement<kType>::load(x[i]);
    return kFeedback ? value + residual[i] : value;
  }

  static constexpr bool kHasResidual = kFeedback;

  // With kFeedback, replaces the element's residual by value - received, unless that is not finite.
  __device__ __forceinline__ void keep_lacking(int block, float value, float received) const {
    const int i = block * kWarpSize + lane;
    const float lacking = value - received;
    if (kFeedback && i < n && codec::magnitude_bits(lacking) < codec::kInfBits) {
      residual[i] = lacking;
    }
  }
};

// Calls body(source) for a tile. Properties that all elements have in common are tested here, once: testing them for
// each element would put branches between the loads.
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

// Writes the extents of a tile's blocks; blocks beyond the last one get the extent of zeros.
template <class Source>
__device__ __forceinline__ void measure_tile(const Source& source, uint32_t* of_block) {
  uint32_t bits[kTileBlocks];  // All of them are requested at the same time.
  NARROWCAST_UNROLL
  for (int k = 0; k < kTileBlocks; ++k) {
    bits[k] = codec::float_bits(source.at(k));
  }
  // The largest bits as signed integers belong to the largest positive number; the largest bits as unsigned integers
  // belong to the negative number of the largest magnitude. This holds if there are such numbers.
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

// Calls count(extent) for the thread's blocks of a chunk.
template <class Count>
__device__ __forceinline__ void visit_extents(const VariableEncoding& encoding, const Count& count) {
  const int64_t end = encoding.chunks.end(blockIdx.x) * kTileBlocks;  // Beyond the last block there are zeros.
  for (int64_t i = encoding.chunks.begin(blockIdx.x) * kTileBlocks + threadIdx.x; i < end; i += kChunkThreads) {
    count(codec::wire::BlockExtent{encoding.search.of_block[i]});
  }
}

// Writes the largest value of a chunk, from the largest value of each thread of a block. Must be called once in a
// kernel.
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

// The arguments of StepCodes::width_of() for one step.
struct TriedStep {
  float inverse;
  uint32_t least_faint;
};

// A thread's words with each of the steps of a round. The sum over a warp's threads stays below 2^32 for up to 2^41
// elements. A warp has at most one of kMostChunks * kChunkWarps parts of all blocks. A block has less than 2^8 words,
// however far its width exceeds kMostWidth.
struct TriedSteps {
  TriedStep tried[kTriedSteps];
  float reach;
  uint32_t words[kTriedSteps] = {};

  // All lanes of a warp call it: each of the first kTriedSteps lanes computes the division for one step.
  __device__ __forceinline__ TriedSteps(const StepRange& range, const VariableEncodeArguments& arguments) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const codec::wire::StepCodes codes = codes_of(range.tried(lane < kTriedSteps ? lane : 0), arguments);
    reach = codes.reach();
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

// Writes the sums over all threads of a block. Must be called once in a kernel.
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
