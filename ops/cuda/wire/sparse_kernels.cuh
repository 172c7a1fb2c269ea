// The kernels of sparse_kernels.h. A block of threads works on a block of the format, whose elements it keeps in shared
// memory. Each thread counts and finds kept elements among its own consecutive ones; so a prefix sum over threads gives
// their order. The message of a block has some hundred bits, and one thread writes or reads them.
#pragma once

#include <cstdint>

#include "ops/codec/sparse_top.h"
#include "ops/cuda/launch/launch_arguments.h"
#include "ops/cuda/launch/vectors.h"
#include "ops/cuda/wire/array_tile.cuh"
#include "ops/cuda/wire/sparse_kernels.h"

namespace narrowcast::cuda {

using codec::wire::kMostKept;
using codec::wire::kSparseBlock;

inline constexpr int kSparseThreads = 256;
inline constexpr int kSparseWarps = kSparseThreads / kWarpSize;
inline constexpr int kOwnElements = static_cast<int>(kSparseBlock) / kSparseThreads;

// Blocks of threads for n > 0 elements.
inline unsigned sparse_blocks(int64_t n) { return static_cast<unsigned>((n + kSparseBlock - 1) / kSparseBlock); }

// The block of threads' elements of an array, and the offset of their message.
struct SparsePlace {
  int64_t first;
  int n;
  int64_t byte;

  __device__ __forceinline__ SparsePlace(int per_mille, int64_t numel)
      : first(int64_t{blockIdx.x} * kSparseBlock),
        n(static_cast<int>(numel - first < kSparseBlock ? numel - first : kSparseBlock)),
        byte(int64_t{blockIdx.x} * codec::wire::sparse_block_bytes<int64_t>(per_mille, int64_t{kSparseBlock})) {}
};

// A tile whose consecutive elements of different threads lie in different banks of shared memory.
struct PaddedTile {
  float memory[kSparseBlock + kSparseBlock / kOwnElements];

  __device__ __forceinline__ float& at(int i) { return memory[i + i / kOwnElements]; }
};

// Calls body(element) for all elements of the block of threads, side by side.
template <class Body>
__device__ __forceinline__ void for_elements(int n, const Body& body) {
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kSparseThreads) {
    body(i);
  }
}

// Element `index` of an array, plus its residual if that is not null.
template <FloatType kType>
__device__ __forceinline__ float load_element(const void* array, const float* residual, int64_t index) {
  using Element = ArrayElement<kType>;
  const float x = Element::load(static_cast<const typename Element::Storage*>(array)[index]);
  return residual == nullptr ? x : x + residual[index];
}

// A sum and a maximum over the threads of a block; `of_warps` is shared memory that no thread uses otherwise.
__device__ __forceinline__ unsigned sum_of_block(unsigned value, unsigned (&of_warps)[kSparseWarps]) {
  const unsigned of_warp = __reduce_add_sync(kAllLanes, value);
  if (threadIdx.x % kWarpSize == 0) {
    of_warps[threadIdx.x / kWarpSize] = of_warp;
  }
  __syncthreads();
  unsigned sum = 0;
  for (const unsigned each : of_warps) {
    sum += each;
  }
  __syncthreads();
  return sum;
}

__device__ __forceinline__ unsigned largest_of_block(unsigned value, unsigned (&of_warps)[kSparseWarps]) {
  const unsigned of_warp = __reduce_max_sync(kAllLanes, value);
  if (threadIdx.x % kWarpSize == 0) {
    of_warps[threadIdx.x / kWarpSize] = of_warp;
  }
  __syncthreads();
  unsigned largest = 0;
  for (const unsigned each : of_warps) {
    largest = each > largest ? each : largest;
  }
  __syncthreads();
  return largest;
}

// The sum of the values of all threads before this one.
__device__ __forceinline__ unsigned sum_before(unsigned value, unsigned (&of_warps)[kSparseWarps]) {
  const unsigned lane = threadIdx.x % kWarpSize;
  const unsigned warp = threadIdx.x / kWarpSize;
  unsigned sum = value;
  for (unsigned distance = 1; distance < kWarpSize; distance *= 2) {
    const unsigned other = __shfl_up_sync(kAllLanes, sum, distance);
    sum += lane >= distance ? other : 0;
  }
  if (lane == kWarpSize - 1) {
    of_warps[warp] = sum;
  }
  __syncthreads();
  for (unsigned other = 0; other < warp; ++other) {
    sum += of_warps[other];
  }
  __syncthreads();
  return sum - value;
}

// A thread's consecutive elements, of a tile that is filled up with zeros. These come last, so they are never kept.
struct OwnMagnitudes {
  uint32_t bits[kOwnElements];

  __device__ __forceinline__ explicit OwnMagnitudes(PaddedTile& tile) {
    NARROWCAST_UNROLL
    for (int i = 0; i < kOwnElements; ++i) {
      bits[i] = codec::magnitude_bits(tile.at(static_cast<int>(threadIdx.x) * kOwnElements + i));
    }
  }

  __device__ __forceinline__ uint32_t largest() const {
    uint32_t result = 0;
    NARROWCAST_UNROLL
    for (int i = 0; i < kOwnElements; ++i) {
      result = bits[i] > result ? bits[i] : result;
    }
    return result;
  }

  // The number for which `is_counted` is true.
  template <class IsCounted>
  __device__ __forceinline__ unsigned count(const IsCounted& is_counted) const {
    unsigned counted = 0;
    NARROWCAST_UNROLL
    for (int i = 0; i < kOwnElements; ++i) {
      counted += is_counted(bits[i]) ? 1U : 0U;
    }
    return counted;
  }
};

// Writes the places of the kept elements in order. The low half of the packed counts is of elements above the
// threshold, the upper half of those equal to it.
__device__ __forceinline__ void find_places(const OwnMagnitudes& own, const codec::wire::SparseThreshold& threshold,
                                            unsigned (&of_warps)[kSparseWarps], uint16_t* places) {
  const unsigned above = own.count([&](uint32_t bits) { return bits > threshold.least; });
  const unsigned equal = own.count([&](uint32_t bits) { return bits == threshold.least; });
  const unsigned before = sum_before(above | equal << 16, of_warps);
  int64_t above_before = before & 0xFFFFU;
  int64_t equal_before = before >> 16;
  NARROWCAST_UNROLL
  for (int i = 0; i < kOwnElements; ++i) {
    const bool is_equal = own.bits[i] == threshold.least;
    if (own.bits[i] > threshold.least || (is_equal && equal_before < threshold.equal)) {
      const int64_t equal_kept = equal_before < threshold.equal ? equal_before : threshold.equal;
      places[above_before + equal_kept] =
          static_cast<uint16_t>(threadIdx.x * static_cast<unsigned>(kOwnElements) + static_cast<unsigned>(i));
    }
    above_before += own.bits[i] > threshold.least ? 1 : 0;
    equal_before += is_equal ? 1 : 0;
  }
}

// Encodes an array. With registers for three blocks per SM, no kind of GPU spills any.
__global__ void __launch_bounds__(kSparseThreads, 3)
    sparse_encode_kernel(const __grid_constant__ SparseEncodeArguments arguments) {
  __shared__ PaddedTile tile;
  __shared__ unsigned of_warps[kSparseWarps];
  __shared__ uint16_t places[kMostKept];
  __shared__ codec::wire::SparseLevels levels;
  __shared__ uint8_t message[codec::wire::kMostSparseBytes];
  const SparsePlace place(arguments.per_mille, arguments.n);
  const codec::wire::SparseLayout layout = codec::wire::sparse_layout(arguments.per_mille, place.n);
  visit_float_type(arguments.type, [&](auto type) {
    for_elements(static_cast<int>(kSparseBlock), [&](int i) {
      tile.at(i) =
          i < place.n ? load_element<decltype(type)::value>(arguments.x, arguments.residual, place.first + i) : 0.0F;
    });
  });
  __syncthreads();
  const OwnMagnitudes own(tile);
  const uint32_t largest = largest_of_block(own.largest(), of_warps);
  const bool is_finite = largest < codec::kInfBits;
  if (is_finite) {
    const auto threshold = codec::wire::sparse_threshold(largest, layout, [&](uint32_t bits) -> int64_t {
      return sum_of_block(own.count([&](uint32_t each) { return each >= bits; }), of_warps);
    });
    find_places(own, threshold, of_warps, places);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    const auto kept = [&](int64_t i) { return tile.at(places[i]); };
    levels = is_finite ? codec::wire::sparse_levels(layout.kept, kept) : codec::wire::nan_levels();
    codec::wire::write_sparse_block(
        layout, levels, [&](int64_t i) { return places[i]; }, [&](int64_t i) { return levels.code(kept(i)); }, message);
  }
  __syncthreads();
  for_elements(static_cast<int>(layout.bytes), [&](int i) { arguments.message[place.byte + i] = message[i]; });
  if (!is_finite) {
    return;
  }
  if (arguments.residual != nullptr) {
    if (!levels.are_zero()) {
      for_elements(static_cast<int>(layout.kept), [&](int i) {
        float& x = tile.at(places[i]);
        x -= levels.value(levels.code(x));
      });
    }
    __syncthreads();
    for_elements(place.n, [&](int i) { arguments.residual[place.first + i] = tile.at(i); });
  }
  if (arguments.spent != nullptr) {
    for_elements(place.n, [&](int i) { arguments.spent[place.first + i] = 0; });
  }
}

// The kept elements of a message's block.
struct KeptElements {
  int64_t count;
  bool is_number;  // Else the whole block is NaN.
  uint16_t places[kMostKept];
  float values[kMostKept];
};

// Computes the mean of all parts. Each warp reads the block of another rank; then all threads add these in the order of
// ranks.
__global__ void __launch_bounds__(kSparseThreads)
    sparse_average_kernel(const __grid_constant__ SparseAverageArguments arguments) {
  __shared__ float sum[kSparseBlock];
  __shared__ KeptElements of_ranks[kSparseWarps];
  const RankParts& parts = arguments.parts;
  const SparsePlace place(arguments.per_mille, parts.n);
  const codec::wire::SparseLayout layout = codec::wire::sparse_layout(arguments.per_mille, place.n);
  for_elements(place.n, [&](int i) { sum[i] = 0; });
  for (int64_t begin = 0; begin < parts.ranks; begin += kSparseWarps) {
    const int64_t own = begin + threadIdx.x / kWarpSize;
    if (threadIdx.x % kWarpSize == 0 && own < parts.ranks && own != parts.own_rank) {
      KeptElements& kept = of_ranks[threadIdx.x / kWarpSize];
      kept.count = 0;
      kept.is_number = codec::wire::read_sparse_block(layout, parts.message(own) + place.byte,
                                                      [&](int64_t i, int64_t at, float value) {
                                                        kept.places[i] = static_cast<uint16_t>(at);
                                                        kept.values[i] = value;
                                                        kept.count = i + 1;
                                                      });
    }
    __syncthreads();
    for (int64_t rank = begin; rank < parts.ranks && rank < begin + kSparseWarps; ++rank) {
      const KeptElements& kept = of_ranks[rank - begin];
      if (rank == parts.own_rank) {
        visit_float_type(parts.type, [&](auto type) {
          for_elements(place.n, [&](int i) {
            sum[i] += load_element<decltype(type)::value>(parts.own, parts.own_residual, place.first + i);
          });
        });
      } else if (kept.is_number) {
        for_elements(static_cast<int>(kept.count), [&](int i) { sum[kept.places[i]] += kept.values[i]; });
      } else {
        for_elements(place.n, [&](int i) { sum[i] = codec::float_of_bits(codec::kQuietNanBits); });
      }
      __syncthreads();
    }
  }
  const auto divisor = static_cast<float>(parts.divisor());
  visit_float_type(arguments.type, [&](auto type) {
    using Element = ArrayElement<decltype(type)::value>;
    auto* const mean = static_cast<typename Element::Storage*>(arguments.mean) + place.first;
    for_elements(place.n, [&](int i) { mean[i] = Element::store(sum[i] / divisor); });
  });
}

}  // namespace narrowcast::cuda
