// What code for host and device starts from: the mark of its functions, and the bits of float32.
#pragma once

#include <cstdint>
#include <cstring>

// Marks a function that CPU code and CUDA kernels share.
#if defined(__CUDACC__)
#define NARROWCAST_HOST_DEVICE __host__ __device__
#else
#define NARROWCAST_HOST_DEVICE
#endif

namespace narrowcast::codec {

inline constexpr uint32_t kSignBit = 0x80000000U;
inline constexpr uint32_t kInfBits = 0x7F800000U;
inline constexpr uint32_t kQuietNanBits = 0x7FC00000U;

NARROWCAST_HOST_DEVICE inline uint32_t float_bits(float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

NARROWCAST_HOST_DEVICE inline float float_of_bits(uint32_t bits) {
  float x = 0;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// The bits of |x|; they order as the magnitudes do, with Inf and then NaN above all numbers.
NARROWCAST_HOST_DEVICE inline uint32_t magnitude_bits(float x) { return float_bits(x) & ~kSignBit; }

}  // namespace narrowcast::codec
