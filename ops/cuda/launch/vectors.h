// What one instruction of a GPU does: it moves several elements, up to 16 bytes, as registers, and to and from memory;
// it permutes bytes; it converts numbers. Tests compile it for the CPU.
#pragma once

#include <cassert>
#include <cstdint>
#include <stdexcept>

#include "ops/codec/host_device.h"
#include "ops/codec/quantize_tensor.h"
#include "ops/codec/wire_elements.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#endif

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

// Conversions for which GPUs have an instruction: on a GPU that, on the CPU the codec. Both give the same numbers and
// bits, except which NaN a NaN becomes; where that counts, the caller looks for it.

// binary16_value is the number that binary16's bits stand for. binary16_bits and bfloat16_bits are the nearest
// number's, half to even: Inf from halfway to the next power of two on.
#if defined(__CUDA_ARCH__)
__device__ __forceinline__ float binary16_value(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
__device__ __forceinline__ uint16_t binary16_bits(float x) { return __half_as_ushort(__float2half_rn(x)); }
__device__ __forceinline__ uint16_t bfloat16_bits(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
#else
NARROWCAST_HOST_DEVICE inline float binary16_value(uint16_t bits) { return codec::decode_fp16(bits); }
NARROWCAST_HOST_DEVICE inline uint16_t binary16_bits(float x) {
  return codec::encode_fp16(x, codec::float_of_bits(codec::kInfBits));
}
NARROWCAST_HOST_DEVICE inline uint16_t bfloat16_bits(float x) { return codec::wire::Bfloat16::encode(x); }
#endif

// e4m3_value is the number of the E4M3 code that is byte kByte of a word, e4m3_pair the codes of two numbers of a block
// over its scale, `low` in the lower byte. GPUs before sm_89 have no instruction for them.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
template <int kByte>
__device__ __forceinline__ float e4m3_value(uint32_t word) {
  const auto pair = static_cast<__nv_fp8x2_storage_t>(word >> (kByte / 2 * 16));
  const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3);
  return binary16_value(kByte % 2 == 0 ? halves.x : halves.y);
}
__device__ __forceinline__ uint32_t e4m3_pair(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}
#else
template <int kByte>
NARROWCAST_HOST_DEVICE inline float e4m3_value(uint32_t word) {
  return codec::wire::Float8E4M3::decode_field<8 * kByte>(word);
}
NARROWCAST_HOST_DEVICE inline uint32_t e4m3_pair(float low, float high) {
  return codec::wire::Float8E4M3::encode(low) | codec::wire::Float8E4M3::encode(high) << 8;
}
#endif

}  // namespace narrowcast::cuda
