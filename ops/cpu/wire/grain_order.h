// Elements of arrays in the order in which they travel, for the kernels that read and write them.
#pragma once

#include <cstdint>

namespace narrowcast::cpu {

// Elements at whose multiples an array can be split (wire_kernels.h).
inline constexpr int64_t kWireGrain = 1024;

// How many grains before a grain is used memory is asked for it: working on one takes less time than memory takes to
// answer. Of neighbours that all formats encode, 2 were too few and 6 too many; 3 and 4 were alike, and so they are of
// grains that are dealt out.
inline constexpr int64_t kGrainsAhead = 3;

// The first `grains` grains of an array dealt out: place p has grain p * stride mod grains. Without any, its own order.
struct GrainOrder {
  int64_t grains = 0;
  int64_t stride = 1;

  // Where the element lies that has that place, a multiple of kWireGrain. The rest of its grain follows it.
  int64_t element(int64_t place) const {
    const int64_t grain = place / kWireGrain;
    return grain < grains ? grain * stride % grains * kWireGrain : place;
  }
};

// n elements of an array that begins at `x`, from place `place` on, a multiple of kWireGrain. In the array's own order
// they can be given as an array by themselves.
template <class T>
struct WireElements {
  T* x;
  int64_t n;
  GrainOrder order = {};
  int64_t place = 0;

  // Where number i of them is, a multiple of kWireGrain, and behind it the rest of its grain.
  T* grain(int64_t i) const { return x + order.element(place + i); }

  // The grain to be asked for while that of number i is worked on; null if there is none.
  T* upcoming(int64_t i) const {
    const int64_t later = i + kGrainsAhead * kWireGrain;
    return later < n ? grain(later) : nullptr;
  }

  // Whether they certainly lie one behind the other.
  bool is_neighbours() const { return order.grains == 0 || n <= kWireGrain; }
};

// Elements to encode: T is float, double, c10::BFloat16 or c10::Half, rounded to float32 first.
template <class T>
using WireInput = WireElements<const T>;

using WireOutput = WireElements<float>;

}  // namespace narrowcast::cpu
