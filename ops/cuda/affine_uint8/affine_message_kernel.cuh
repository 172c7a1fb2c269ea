// The kernels of affine_message.h. Tests compile them for the CPU, where `T` is LibTorch's type.
#pragma once

#include <cstdint>

#include "ops/codec/affine_uint8.h"
#include "ops/cuda/affine_uint8/affine_message.h"
#include "ops/cuda/affine_uint8/affine_uint8_kernel.cuh"
#include "ops/cuda/launch/rows.h"
#include "ops/cuda/launch/vectors.h"

namespace narrowcast::cuda {

inline constexpr int kAffineThreads = 256;  // Per block.
inline constexpr int kLanesOfWarp = 32;

// The longest channels that one warp or one block encodes alone: when it writes the codes, the channel is still in a
// cache.
inline constexpr int64_t kMostOfAffineWarp = 1024;
inline constexpr int64_t kMostOfAffineBlock = 8192;

// The division of longer channels into parts. A block that writes the codes of a part reads the ranges of all parts of
// the channel; they are few compared to the codes.
inline RowParts parts_of_long_channels(const AffineChannels& channels) {
  constexpr int64_t kMostParts = 512;
  const int64_t least = (channels.size / kMostParts + 16) / 16 * 16;
  return share_elements(channels.numel, channels.size, least < kMostOfAffineBlock ? kMostOfAffineBlock : least);
}

// kThreads threads of a block, 32 or all of them, that work together on a part of a channel.
template <int kThreads>
struct AffineTeam {
  static constexpr int kPerBlock = kAffineThreads / kThreads;

  static __device__ __forceinline__ Lane lane() { return {static_cast<int>(threadIdx.x) % kThreads, kThreads}; }

  // The index of the team in the grid.
  static __device__ __forceinline__ int64_t index() {
    return (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * kPerBlock + static_cast<int>(threadIdx.x) / kThreads;
  }
};

// The range of the values of all threads of a team. All of them call it, once in a kernel.
template <int kThreads>
__device__ __forceinline__ RangeBits range_of_team(const RangeBits& own) {
  constexpr unsigned kWholeWarp = ~0U;
  const RangeBits of_warp{__reduce_max_sync(kWholeWarp, own.least), __reduce_max_sync(kWholeWarp, own.greatest)};
  if constexpr (kThreads == kLanesOfWarp) {
    return of_warp;
  } else {
    constexpr int kWarps = kThreads / kLanesOfWarp;
    __shared__ uint32_t least[kWarps];
    __shared__ int32_t greatest[kWarps];
    const int thread = static_cast<int>(threadIdx.x);
    if (thread % kLanesOfWarp == 0) {
      least[thread / kLanesOfWarp] = of_warp.least;
      greatest[thread / kLanesOfWarp] = of_warp.greatest;
    }
    __syncthreads();
    RangeBits all = of_warp;
    NARROWCAST_UNROLL
    for (int warp = 0; warp < kWarps; ++warp) {
      all = merge(all, {least[warp], greatest[warp]});
    }
    return all;
  }
}

// Writes a channel's qparams to the header.
__device__ __forceinline__ void send_qparams(const codec::AffineQparams& qparams, int64_t channel, uint8_t* message) {
  store_vector(message + channel * static_cast<int64_t>(sizeof(qparams)), qparams);
}

// One team per channel: it finds the range, then writes the codes. The launch bounds are as high as the registers
// permit.
template <int kThreads, class T>
__global__ void __launch_bounds__(kAffineThreads, sizeof(T) == sizeof(double) ? 2 : 3)
    affine_encode_channels_kernel(const __grid_constant__ AffineEncodeArguments arguments,
                                  const __grid_constant__ RowParts parts) {
  using Team = AffineTeam<kThreads>;
  const int64_t channel = Team::index();
  if (channel >= parts.count()) {
    return;  // True for all lanes of the team or for none.
  }
  const RowPart part = parts.at(channel);
  const T* const x = static_cast<const T*>(arguments.x) + part.first;
  const Lane lane = Team::lane();
  const RangeBits range = range_of_team<kThreads>(reduce_share<RangeBits>(x, part.size, lane));
  const codec::AffineQparams qparams = codec::choose_qparams_by_reciprocal(range.range());
  if (lane.rank == 0) {
    send_qparams(qparams, channel, arguments.message);
  }
  quantize_share(x, part.size, qparams, arguments.message + arguments.channels.header_bytes() + part.first, lane);
}

// One block per part of a long channel: finds its range.
template <class T>
__global__ void __launch_bounds__(kAffineThreads)
    affine_range_kernel(const __grid_constant__ AffineEncodeArguments arguments,
                        const __grid_constant__ RowParts parts) {
  using Team = AffineTeam<kAffineThreads>;
  const int64_t index = Team::index();
  if (index >= parts.count()) {
    return;
  }
  const RowPart part = parts.at(index);
  const T* const x = static_cast<const T*>(arguments.x) + part.first;
  const RangeBits range = range_of_team<kAffineThreads>(reduce_share<RangeBits>(x, part.size, Team::lane()));
  if (Team::lane().rank == 0) {
    static_cast<RangeBits*>(arguments.ranges)[index] = range;
  }
}

// One block per part of a long channel: writes its codes, after the ranges of all parts are known.
template <class T>
__global__ void __launch_bounds__(kAffineThreads)
    affine_encode_parts_kernel(const __grid_constant__ AffineEncodeArguments arguments,
                               const __grid_constant__ RowParts parts) {
  using Team = AffineTeam<kAffineThreads>;
  const int64_t index = Team::index();
  if (index >= parts.count()) {
    return;
  }
  const RowPart part = parts.at(index);
  const Lane lane = Team::lane();
  const RangeBits* const of_channel = static_cast<const RangeBits*>(arguments.ranges) + part.row * parts.per_row;
  RangeBits own;
  for (int64_t i = lane.rank; i < parts.per_row; i += lane.team) {
    own = merge(own, of_channel[i]);
  }
  const codec::AffineQparams qparams = codec::choose_qparams_by_reciprocal(range_of_team<kAffineThreads>(own).range());
  if (lane.rank == 0 && index == part.row * parts.per_row) {
    send_qparams(qparams, part.row, arguments.message);
  }
  quantize_share(static_cast<const T*>(arguments.x) + part.first, part.size, qparams,
                 arguments.message + arguments.channels.header_bytes() + part.first, lane);
}

// Averages messages, in a launch over parts (rows.h).
template <class T>
struct AverageAffineMessages {
  static constexpr int kPack = kPackBytes / static_cast<int>(sizeof(T));
  static constexpr int kPacks = 2;  // Packs that a lane sums at a time, to keep the memory busy.
  static constexpr int64_t kPart = int64_t{kAffineThreads} * kPacks * kPack * 2;

  AffineAverageArguments arguments;

  NARROWCAST_HOST_DEVICE void operator()(RowPart part, Lane lane) const {
    const Channel channel{
        arguments.messages + part.row * static_cast<int64_t>(sizeof(codec::AffineQparams)),
        arguments.messages + arguments.channels.header_bytes() + part.first,
        static_cast<T*>(arguments.mean) + part.first,
    };
    const int skipped = elements_to_alignment<kPack>(channel.mean);
    const int head = skipped < part.size ? skipped : part.size;
    const int packs = (part.size - head) / kPack;
    const int end = head + packs * kPack;
    if (lane.rank < head) average<1, 1, true>(channel, lane.rank, 1, lane);
    if (lane.rank < part.size - end) average<1, 1, true>(channel, end + lane.rank, 1, lane);
    const bool aligned = elements_to_alignment<kPack>(channel.codes + head) == 0 && arguments.stride % kPack == 0;
    for (int first = lane.rank; first < packs; first += kPacks * lane.team) {
      if (aligned) {
        average<kPacks, kPack, true>(channel, head + first * kPack, packs - first, lane);
      } else {
        average<kPacks, kPack, false>(channel, head + first * kPack, packs - first, lane);
      }
    }
  }

 private:
  // The qparams and the first code in rank 0's message, and the destination of that code's mean.
  struct Channel {
    const uint8_t* qparams;
    const uint8_t* codes;
    T* mean;
  };

  // Averages up to kTurns packs of kCount elements from element `i` on, a team's width apart. `left` is the number of
  // packs until the end, with a distance of 1.
  template <int kTurns, int kCount, bool kAligned>
  NARROWCAST_HOST_DEVICE void average(const Channel& channel, int i, int left, Lane lane) const {
    const int step = lane.team * kCount;
    float sums[kTurns][kCount] = {};
    for (int64_t rank = 0; rank < arguments.ranks; ++rank) {
      const int64_t byte = rank * arguments.stride;
      const auto qparams = load_vector<codec::AffineQparams>(channel.qparams + byte);
      Pack<uint8_t, kCount> codes[kTurns];
      NARROWCAST_UNROLL
      for (int turn = 0; turn < kTurns; ++turn) {
        if (turn * lane.team < left) {
          codes[turn] = load_pack<kCount, kAligned>(channel.codes + byte + i + turn * step);
        }
      }
      NARROWCAST_UNROLL
      for (int turn = 0; turn < kTurns; ++turn) {
        if (turn * lane.team < left) {
          NARROWCAST_UNROLL
          for (int k = 0; k < kCount; ++k) {
            sums[turn][k] += codec::dequantize(codes[turn].values[k], qparams);
          }
        }
      }
    }
    const float inverse = 1.0F / static_cast<float>(arguments.ranks);
    NARROWCAST_UNROLL
    for (int turn = 0; turn < kTurns; ++turn) {
      if (turn * lane.team < left) {
        Pack<T, kCount> mean;
        NARROWCAST_UNROLL
        for (int k = 0; k < kCount; ++k) {
          mean.values[k] = static_cast<T>(sums[turn][k] * inverse);
        }
        store_pack<kCount, true>(mean, channel.mean + i + turn * step);
      }
    }
  }
};

}  // namespace narrowcast::cuda
