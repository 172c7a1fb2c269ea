// Numbers of narrow float types as float32 by the GPU's own instructions: the values that the codec computes, in a
// fifth of the instructions (which bits a NaN has is the GPU's matter).
#pragma once

#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/codec/quantize_tensor.h"
#include "ops/codec/wire_elements.h"

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#endif

namespace narrowcast::cuda {

// Of binary16's bits.
#if defined(__CUDA_ARCH__)
__device__ __forceinline__ float binary16_value(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
#else
NARROWCAST_HOST_DEVICE inline float binary16_value(uint16_t bits) { return codec::decode_fp16(bits); }
#endif

// Of the E4M3 code that is byte kByte of a word. GPUs before sm_89 have no instruction for it.
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

}  // namespace narrowcast::cuda
