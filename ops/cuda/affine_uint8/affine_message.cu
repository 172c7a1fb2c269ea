#include "ops/cuda/affine_uint8/affine_message.h"

#include <stdexcept>
#include <string>

#include "ops/cuda/affine_uint8/affine_message_kernel.cuh"
#include "ops/cuda/launch/launch.cuh"
#include "ops/cuda/launch/rows.cuh"

namespace narrowcast::cuda {

static_assert(kAffineThreads == kBlockThreads, "launches over parts have the same blocks");

int64_t affine_ranges_bytes(const AffineChannels& channels) {
  return channels.size <= kMostOfAffineBlock
             ? 0
             : parts_of_long_channels(channels).count() * static_cast<int64_t>(sizeof(RangeBits));
}

void launch_affine_encode(const AffineEncodeArguments& arguments, Stream stream) {
  const AffineChannels& channels = arguments.channels;
  check_float_type(arguments.type);
  if (channels.numel == 0) {
    return;
  }
  visit_float_type(arguments.type, [&](auto constant) {
    using T = CudaFloat<decltype(constant)>;
    if (channels.size <= kMostOfAffineBlock) {
      const RowParts parts = share_elements(channels.numel, channels.size, kMostOfAffineBlock);
      checked_launch("affine_encode_channels_kernel", [&] {
        if (channels.size <= kMostOfAffineWarp) {
          affine_encode_channels_kernel<WarpTeam::kThreads, T>
              <<<grid_for<WarpTeam>(parts.count()), kBlockThreads, 0, stream>>>(arguments, parts);
        } else {
          affine_encode_channels_kernel<BlockTeam::kThreads, T>
              <<<grid_for<BlockTeam>(parts.count()), kBlockThreads, 0, stream>>>(arguments, parts);
        }
      });
      return;
    }
    const RowParts parts = parts_of_long_channels(channels);
    const dim3 blocks = grid_for<BlockTeam>(parts.count());
    checked_launch("affine_range_kernel",
                   [&] { affine_range_kernel<T><<<blocks, kBlockThreads, 0, stream>>>(arguments, parts); });
    checked_launch("affine_encode_parts_kernel",
                   [&] { affine_encode_parts_kernel<T><<<blocks, kBlockThreads, 0, stream>>>(arguments, parts); });
  });
}

void launch_affine_average(const AffineAverageArguments& arguments, Stream stream) {
  const AffineChannels& channels = arguments.channels;
  check_float_type(arguments.type);
  if (arguments.ranks < 1) {
    throw std::invalid_argument("a mean needs at least one rank, but has " + std::to_string(arguments.ranks));
  }
  if (channels.numel == 0) {
    return;
  }
  visit_float_type(arguments.type, [&](auto constant) {
    using Average = AverageAffineMessages<CudaFloat<decltype(constant)>>;
    launch_for_each_part(Average{arguments}, share_elements(channels.numel, channels.size, Average::kPart), stream,
                         "affine_average");
  });
}

}  // namespace narrowcast::cuda
