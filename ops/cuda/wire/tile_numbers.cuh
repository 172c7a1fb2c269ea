// What the codecs of a lane's elements share: numbers of narrow float types as float32, and random words.
#pragma once

#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/codec/quantize_tensor.h"
#include "ops/codec/wire_elements.h"
#include "ops/codec/wire_rounding.h"
#include "ops/cuda/wire/array_tile.cuh"

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#endif

namespace narrowcast::cuda {

// The number that binary16's bits stand for, by the GPU's own instruction: the value that the codec computes, in a
// fifth of the instructions (which bits a NaN has is the GPU's matter).
#if defined(__CUDA_ARCH__)
__device__ __forceinline__ float binary16_value(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
#else
NARROWCAST_HOST_DEVICE inline float binary16_value(uint16_t bits) { return codec::decode_fp16(bits); }
#endif

// The same for the E4M3 code that is byte kByte of a word. GPUs before sm_89 have no instruction for it.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
template <int kByte>
__device__ __forceinline__ float e4m3_value(uint32_t word) {
  const auto pair = static_cast<__nv_fp8x2_storage_t>(word >> (kByte / 2 * 16));
  const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3);
  return binary16_value(kByte % 2 == 0 ? halves.x : halves.y);
}
#else
template <int kByte>
NARROWCAST_HOST_DEVICE inline float e4m3_value(uint32_t word) {
  return codec::wire::Float8E4M3::decode_field<8 * kByte>(word);
}
#endif

// The random words (codec/wire_rounding.h) of the kColumns elements from element `first` on: of one quad of the
// generator, or of two where the array begins within one. Selects instead of indices, which would put the words into
// local memory.
__device__ __forceinline__ codec::wire::PhiloxWords random_columns(const codec::wire::Rounding& rounding, int first) {
  const uint64_t position = rounding.position + static_cast<uint64_t>(first);
  codec::wire::PhiloxWords words = codec::wire::random_words(rounding, position / kColumns);
  const auto skipped = static_cast<int>(position % kColumns);
  if (skipped == 0) {
    return words;
  }
  codec::wire::PhiloxWords next = codec::wire::random_words(rounding, position / kColumns + 1);
  if (skipped % 2 != 0) {
    words = {{words.word[1], words.word[2], words.word[3], next.word[0]}};
    next = {{next.word[1], next.word[2], 0, 0}};
  }
  if (skipped >= 2) {
    words = {{words.word[2], words.word[3], next.word[0], next.word[1]}};
  }
  return words;
}

}  // namespace narrowcast::cuda
