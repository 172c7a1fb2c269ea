// The order in which the elements of arrays are sent, for the kernels that read and write them.
#pragma once

#include <cstdint>

#include "ops/codec/wire_grain.h"

namespace narrowcast::cpu {

using codec::wire::kWireGrain;

// Grains by which memory is prefetched ahead: memory takes longer to answer than a grain takes to process. In the
// measurements 2 was too few and 6 too many; 3 and 4 were equally good. This holds for contiguous grains in all formats
// and for reordered grains.
inline constexpr int64_t kGrainsAhead = 3;

// Reorders the first `grains` grains of an array: place p has grain p * stride mod grains. If `grains` is 0, the order
// is the array's own.
struct GrainOrder {
  int64_t grains = 0;
  int64_t stride = 1;

  // The index of the element at that place, a multiple of kWireGrain. The rest of its grain follows it.
  int64_t element(int64_t place) const {
    const int64_t grain = place / kWireGrain;
    return grain < grains ? grain * stride % grains * kWireGrain : place;
  }
};

// n elements of an array that begins at `x`, from place `place` on, a multiple of kWireGrain. Elements in the array's
// own order can also be given as a separate array.
template <class T>
struct WireElements {
  T* x;
  int64_t n;
  GrainOrder order = {};
  int64_t place = 0;

  // Pointer to element i, a multiple of kWireGrain; the rest of its grain follows it.
  T* grain(int64_t i) const { return x + order.element(place + i); }

  // The grain to prefetch while the grain of element i is processed; null if there are no more.
  T* upcoming(int64_t i) const {
    const int64_t later = i + kGrainsAhead * kWireGrain;
    return later < n ? grain(later) : nullptr;
  }

  // Whether the elements are known to be contiguous.
  bool is_neighbours() const { return order.grains == 0 || n <= kWireGrain; }
};

// Elements to encode. T is float, double, c10::BFloat16 or c10::Half; elements are first rounded to float32.
template <class T>
using WireInput = WireElements<const T>;

using WireOutput = WireElements<float>;

}  // namespace narrowcast::cpu
