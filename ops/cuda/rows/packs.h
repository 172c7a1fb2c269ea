// Several elements that one instruction moves, up to 16 bytes.
#pragma once

#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/cuda/unroll.h"

namespace narrowcast::cuda {

// What an instruction moves at most.
inline constexpr int kPackBytes = 16;

template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T values[kCount];
};

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
    return *reinterpret_cast<const Pack<T, kCount>*>(address);
  } else {
    Pack<T, kCount> pack;
    NARROWCAST_UNROLL
    for (int i = 0; i < kCount; ++i) pack.values[i] = address[i];
    return pack;
  }
}

template <int kCount, bool kAligned, class T>
NARROWCAST_HOST_DEVICE inline void store_pack(const Pack<T, kCount>& pack, T* address) {
  if constexpr (kAligned) {
    *reinterpret_cast<Pack<T, kCount>*>(address) = pack;
  } else {
    NARROWCAST_UNROLL
    for (int i = 0; i < kCount; ++i) address[i] = pack.values[i];
  }
}

}  // namespace narrowcast::cuda
