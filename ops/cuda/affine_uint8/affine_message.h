// The messages of PyTorch's reference hooks over arrays in device memory, and the mean of the messages of all ranks. A
// message has one-byte codes and a scale and zero point for each channel, as described in
// ops/collectives/all_reduce/codec/affine_codec.h. The bits are those of PyTorch's hooks on CUDA.
//
// Each function launches kernels on `stream`, of the current device, and does not wait. Pointers are to device memory;
// pointers to elements are aligned for these only. Errors:
// - std::invalid_argument: a value is not a valid FloatType, or there are no ranks.
// - std::runtime_error: a kernel cannot be launched.
#pragma once

#include <cstdint>

#include "ops/codec/affine_uint8.h"
#include "ops/codec/host_device.h"
#include "ops/cuda/launch/launch_arguments.h"

namespace narrowcast::cuda {

// Elements divided into channels, which are contiguous.
struct AffineChannels {
  int64_t numel = 0;
  int64_t size = 1;  // Elements of each channel, >= 1; the last may have fewer.

  NARROWCAST_HOST_DEVICE int64_t count() const { return (numel + size - 1) / size; }
  // Bytes of a message's codec::AffineQparams, which precede the codes, channel by channel.
  NARROWCAST_HOST_DEVICE int64_t header_bytes() const {
    return count() * static_cast<int64_t>(sizeof(codec::AffineQparams));
  }
};

// An array, and the destination of its message.
struct AffineEncodeArguments {
  FloatType type = FloatType::kFloat32;  // x's type.
  const void* x = nullptr;
  AffineChannels channels = {};
  void* ranges = nullptr;      // affine_ranges_bytes(channels) of memory for one call, aligned to 8 bytes.
  uint8_t* message = nullptr;  // Aligned to 8 bytes.
};

// 0 if the kernel that writes a channel's codes also finds its range.
int64_t affine_ranges_bytes(const AffineChannels& channels);

// Writes the message: one launch, or two if channels are too long for one block.
void launch_affine_encode(const AffineEncodeArguments& arguments, Stream stream);

// The messages of all ranks, and the destination of their mean.
struct AffineAverageArguments {
  const uint8_t* messages = nullptr;  // Rank 0's message, aligned to 8 bytes.
  int64_t stride = 0;                 // Bytes from a rank's message to the next rank's, a multiple of 8.
  int64_t ranks = 1;                  // >= 1
  FloatType type = FloatType::kFloat32;
  void* mean = nullptr;  // channels.numel elements of the type.
  AffineChannels channels = {};
};

// mean[i] = (((+0 + element of rank 0) + element of rank 1) + ...) * (1 / ranks), in float32 and in this order; then
// rounded to the type. One launch.
void launch_affine_average(const AffineAverageArguments& arguments, Stream stream);

}  // namespace narrowcast::cuda
