// Several elements that one instruction moves, up to 16 bytes, for kernels: as registers, and to and from memory. Tests
// compile it for the CPU.
#pragma once

#include <cassert>
#include <cstdint>
#include <stdexcept>

#include "ops/codec/host_device.h"

// NARROWCAST_UNROLL before a loop of a known, small number of turns has nvcc write each turn out, so that arrays which
// it indexes can be registers. NARROWCAST_DEVICE_CHECK states what a kernel relies on, such as an alignment: an
// assertion on a GPU, an exception on the CPU.
#if defined(__CUDA_ARCH__)
#define NARROWCAST_UNROLL _Pragma("unroll")
#define NARROWCAST_DEVICE_CHECK(condition) assert(condition)
#else
#define NARROWCAST_UNROLL
#define NARROWCAST_DEVICE_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : throw std::logic_error("kernel: " #condition " does not hold"))
#endif

namespace narrowcast::cuda {

// What an instruction moves at most.
inline constexpr int kPackBytes = 16;

// kCount elements, aligned as a whole; more than kPackBytes are several instructions' work and aligned for each.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount < kPackBytes ? sizeof(T) * kCount : kPackBytes) Pack {
  T values[kCount];
};

// Whether a Vector, a Pack or a number, can be read and written there in one go.
template <class Vector>
NARROWCAST_HOST_DEVICE inline bool is_aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % alignof(Vector) == 0;
}

// Reads a Vector at an address that is aligned for it.
template <class Vector>
NARROWCAST_HOST_DEVICE inline Vector load_vector(const void* address) {
  NARROWCAST_DEVICE_CHECK(is_aligned<Vector>(address));
  return *static_cast<const Vector*>(address);
}

// Writes one to such an address.
template <class Vector>
NARROWCAST_HOST_DEVICE inline void store_vector(void* address, const Vector& vector) {
  NARROWCAST_DEVICE_CHECK(is_aligned<Vector>(address));
  *static_cast<Vector*>(address) = vector;
}

// Elements from `address`, which is aligned for one T, to the next that is aligned for kCount: 0 <= result < kCount.
template <int kCount, class T>
NARROWCAST_HOST_DEVICE inline int elements_to_alignment(const T* address) {
  const auto past = static_cast<int>(reinterpret_cast<uintptr_t>(address) / sizeof(T) % kCount);
  return past == 0 ? 0 : kCount - past;
}

// kCount elements in one instruction if kAligned, which the address must be then; else element by element.
template <int kCount, bool kAligned, class T>
NARROWCAST_HOST_DEVICE inline Pack<T, kCount> load_pack(const T* address) {
  if constexpr (kAligned) {
    return load_vector<Pack<T, kCount>>(address);
  } else {
    Pack<T, kCount> pack;
    NARROWCAST_UNROLL
    for (int i = 0; i < kCount; ++i) pack.values[i] = address[i];
    return pack;
  }
}

// The same for writing.
template <int kCount, bool kAligned, class T>
NARROWCAST_HOST_DEVICE inline void store_pack(const Pack<T, kCount>& pack, T* address) {
  if constexpr (kAligned) {
    store_vector(address, pack);
  } else {
    NARROWCAST_UNROLL
    for (int i = 0; i < kCount; ++i) address[i] = pack.values[i];
  }
}

// Bytes of two words in any order, in one instruction on a GPU: byte i of the result is the byte that nibble i (0..7)
// of `selector` names: 0..3 of `low`, 4..7 of `high`.
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

// Byte i (0..3) of a word, an int8, as float32: raised by 128, as the lowest bits of 2^23 it makes that 2^23 plus
// itself.
NARROWCAST_HOST_DEVICE inline float signed_byte(uint32_t word, int i) {
  constexpr uint32_t kBitsOf2To23 = 0x4B000000U;
  const uint32_t raised = word ^ 0x80808080U;
  return codec::float_of_bits(byte_permute(raised, kBitsOf2To23, 0x7650U | static_cast<uint32_t>(i))) -
         (0x1p23F + 128.0F);
}

}  // namespace narrowcast::cuda
