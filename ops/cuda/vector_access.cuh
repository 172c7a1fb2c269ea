// Wide accesses to memory, for kernels.
#pragma once

#include <cassert>
#include <cstdint>

// What a kernel relies on, such as an alignment. Tests that run kernels on the host define it as an exception.
#ifndef NARROWCAST_DEVICE_CHECK
#define NARROWCAST_DEVICE_CHECK(condition) assert(condition)
#endif

namespace narrowcast::cuda {

// Whether a Vector can be read and written there.
template <class Vector>
__device__ __forceinline__ bool is_aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % alignof(Vector) == 0;
}

// One access of sizeof(Vector) bytes for vectors of up to 16 bytes that are aligned to their size.
template <class Vector>
__device__ __forceinline__ Vector load_vector(const void* address) {
  NARROWCAST_DEVICE_CHECK(is_aligned<Vector>(address));
  return *static_cast<const Vector*>(address);
}

template <class Vector>
__device__ __forceinline__ void store_vector(void* address, const Vector& vector) {
  NARROWCAST_DEVICE_CHECK(is_aligned<Vector>(address));
  *static_cast<Vector*>(address) = vector;
}

}  // namespace narrowcast::cuda
