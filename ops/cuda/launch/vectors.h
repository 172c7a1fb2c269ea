// Operations that are one instruction on a GPU: moving several elements, up to 16 bytes, in registers, from and to
// memory; permuting bytes; converting numbers. Tests compile this file for the CPU.
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

// NARROWCAST_UNROLL before a loop with a constant, small number of iterations makes nvcc unroll it, so that arrays that
// it indexes can be in registers. NARROWCAST_DEVICE_CHECK checks a precondition of a kernel, such as an alignment: an
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

// The most bytes that one instruction moves.
inline constexpr int kPackBytes = 16;

// kCount elements, aligned as a whole. A pack of more than kPackBytes takes several instructions; each of them is
// aligned.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount < kPackBytes ? sizeof(T) * kCount : kPackBytes) Pack {
  T values[kCount];
};

// Whether one instruction can read or write a Vector, a Pack or a number, at this address.
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

// Writes a Vector to an address that is aligned for it.
template <class Vector>
NARROWCAST_HOST_DEVICE inline void store_vector(void* address, const Vector& vector) {
  NARROWCAST_DEVICE_CHECK(is_aligned<Vector>(address));
  *static_cast<Vector*>(address) = vector;
}

// Elements from `address`, which is aligned for one T, to the next address that is aligned for kCount of them: 0 <=
// result < kCount.
template <int kCount, class T>
NARROWCAST_HOST_DEVICE inline int elements_to_alignment(const T* address) {
  const auto past = static_cast<int>(reinterpret_cast<uintptr_t>(address) / sizeof(T) % kCount);
  return past == 0 ? 0 : kCount - past;
}

// Loads kCount elements: if kAligned, in one instruction from an aligned address; else element by element.
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

// Stores kCount elements in the same way.
template <int kCount, bool kAligned, class T>
NARROWCAST_HOST_DEVICE inline void store_pack(const Pack<T, kCount>& pack, T* address) {
  if constexpr (kAligned) {
    store_vector(address, pack);
  } else {
    NARROWCAST_UNROLL
    for (int i = 0; i < kCount; ++i) address[i] = pack.values[i];
  }
}

// Bytes of two words in any order, in one instruction on a GPU. Nibble i (0..7) of `selector` selects byte i of the
// result: 0..3 from `low`, 4..7 from `high`.
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

// Byte i (0..3) of a word, an int8, as float32. The byte plus 128 is placed in the lowest bits of the float32 2^23,
// which gives 2^23 + 128 + byte.
NARROWCAST_HOST_DEVICE inline float signed_byte(uint32_t word, int i) {
  constexpr uint32_t kBitsOf2To23 = 0x4B000000U;
  const uint32_t raised = word ^ 0x80808080U;
  return codec::float_of_bits(byte_permute(raised, kBitsOf2To23, 0x7650U | static_cast<uint32_t>(i))) -
         (0x1p23F + 128.0F);
}

// Conversions for which GPUs have an instruction; the CPU uses the codec. Both give the same numbers and bits, except
// that a NaN may become a different NaN. A caller to whom that matters checks for NaN.

// binary16_value converts binary16's bits to a number. binary16_bits and bfloat16_bits round a number to nearest, half
// to even; from halfway to the next power of two on they give Inf.
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

// Conversions of E4M3: e4m3_value is the number of the code in byte kByte of a word. The function e4m3_pair gives the
// codes of two numbers, which are elements of a block over its scale, with `low` in the lower byte. GPUs before sm_89
// have no instruction for these.
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
