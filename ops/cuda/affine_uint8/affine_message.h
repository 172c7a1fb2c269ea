// The messages of PyTorch's reference hooks over arrays in device memory: codes of one byte with a scale and zero point
// for each channel, as ops/collectives/all_reduce/codec/affine_codec.h says, and the mean of what all ranks sent. The
// bits are those of PyTorch's hooks on CUDA.
//
// Each function launches kernels on `stream`, of the current device, and does not wait. Pointers are to device memory;
// those to elements need their alignment and no more. std::invalid_argument for a number that is no FloatType, or for
// no ranks; std::runtime_error if a kernel cannot be launched.
#pragma once

#include <cstdint>

#include "ops/codec/affine_uint8.h"
#include "ops/codec/host_device.h"
#include "ops/cuda/launch/launch_arguments.h"

namespace narrowcast::cuda {

// Elements in channels, one after the other.
struct AffineChannels {
  int64_t numel = 0;
  int64_t size = 1;  // Of each, >= 1; the last may have fewer.

  NARROWCAST_HOST_DEVICE int64_t count() const { return (numel + size - 1) / size; }
  // A message's codec::AffineQparams, channel by channel, before the codes.
  NARROWCAST_HOST_DEVICE int64_t header_bytes() const {
    return count() * static_cast<int64_t>(sizeof(codec::AffineQparams));
  }
};

// An array, and where its message goes.
struct AffineEncodeArguments {
  FloatType type = FloatType::kFloat32;  // x's.
  const void* x = nullptr;
  AffineChannels channels = {};
  void* ranges = nullptr;      // affine_ranges_bytes(channels) of memory for one call, aligned to 8 bytes.
  uint8_t* message = nullptr;  // Aligned to 8 bytes.
};

// 0 where a channel's range is found by those who write its codes.
int64_t affine_ranges_bytes(const AffineChannels& channels);

// Writes the message: one launch, or two where channels are longer than a block takes at a time.
void launch_affine_encode(const AffineEncodeArguments& arguments, Stream stream);

// The messages of all ranks, and where their mean goes.
struct AffineAverageArguments {
  const uint8_t* messages = nullptr;  // Rank 0's, aligned to 8 bytes.
  int64_t stride = 0;                 // Bytes from a rank's message to the next one's, a multiple of 8.
  int64_t ranks = 1;                  // >= 1
  FloatType type = FloatType::kFloat32;
  void* mean = nullptr;  // channels.numel elements of the type.
  AffineChannels channels = {};
};

// mean[i] = (((+0 + what rank 0 sent) + what rank 1 sent) + ...) * (1 / ranks), in float32 and in this order; then
// rounded to the type. One launch.
void launch_affine_average(const AffineAverageArguments& arguments, Stream stream);

}  // namespace narrowcast::cuda
