// Bytes of two words in any order: CUDA's __byte_perm, which is one instruction there.
#pragma once

#include <cstdint>

#include "ops/codec/host_device.h"

namespace narrowcast::cuda {

// Byte i of the result is the byte that nibble i (0..7) of `selector` names: 0..3 of `low`, 4..7 of `high`.
#if defined(__CUDA_ARCH__)
__device__ inline uint32_t byte_permute(uint32_t low, uint32_t high, uint32_t selector) {
  return __byte_perm(low, high, selector);
}
#else
NARROWCAST_HOST_DEVICE inline uint32_t byte_permute(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t from = selector >> (4 * i) & 7U;
    result |= static_cast<uint32_t>(bytes >> (8 * from) & 0xFFU) << (8 * i);
  }
  return result;
}
#endif

}  // namespace narrowcast::cuda
