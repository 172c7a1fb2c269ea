// What the wire kernels of every instruction set have in common.
#pragma once

#include <hwy/cache_control.h>

#include <cstdint>
#include <tuple>

#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::cpu {

// Kernels work on so many elements at a time, whose floats, codes and random words all stay in the first-level cache.
inline constexpr int64_t kTile = kWireGrain;

inline constexpr int64_t kTileBytes = kTile * static_cast<int64_t>(sizeof(float));
inline constexpr int64_t kCacheLine = 64;

// Floats to encode. `upcoming` are those of the tile kTilesAhead tiles later, to be asked for meanwhile; null if they
// are in a cache already.
struct TileSource {
  const float* x;
  const float* upcoming;
};

// A tile takes less time than memory takes to answer: measured, 2 tiles ahead were too few and 6 too many; 3 and 4 were
// alike.
inline constexpr int64_t kTilesAhead = 3;

// Asks for memory that lies `ahead` bytes behind `begin`, whether it is there or not: of a later tile, while this one
// is worked on. The processor itself asks for more only while memory is read, and not beyond a page.
HWY_INLINE void prefetch(const void* begin, int64_t ahead, int64_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(begin) + static_cast<uintptr_t>(ahead);
  for (int64_t i = 0; i < bytes; i += kCacheLine) {
    hwy::Prefetch(reinterpret_cast<const uint8_t*>(address + static_cast<uintptr_t>(i)));
  }
}

template <class T>
using WireEncode = void (*)(WireInput<T>, const Rounding&, uint8_t*);

// The functions of wire_kernels.h for one format and one instruction set.
struct WireKernels {
  std::tuple<WireEncode<float>, WireEncode<double>, WireEncode<c10::BFloat16>, WireEncode<c10::Half>> encode;
  void (*decode)(const uint8_t*, int64_t, float*);
  void (*average)(const RankParts&, float*);
  void (*average_encode)(const RankParts&, const Rounding&, uint8_t*);
};

}  // namespace narrowcast::cpu
