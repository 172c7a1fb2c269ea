#include "ops/cpu/wire/element_copy.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/wire/element_copy.cpp"
// The next include compiles this file once per instruction set.
#include <hwy/foreach_target.h>
// Keep the others below it.
#include <hwy/highway.h>

#include <algorithm>

#include "ops/cpu/wire/wire_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {

// Copies a grain, and meanwhile prefetches memory from `upcoming` on, unless that is null.
template <class Sink>
HWY_INLINE void copy_grain(const float* from, const float* upcoming, int64_t n, float* to) {
  constexpr int64_t kInCacheLine = kCacheLine / static_cast<int64_t>(sizeof(float));
  for (int64_t i = 0; i < n; i += kInCacheLine) {
    if (upcoming != nullptr) {
      prefetch(upcoming, i * static_cast<int64_t>(sizeof(float)), kCacheLine);
    }
    put_all<Sink>(from + i, std::min(kInCacheLine, n - i), to + i);
  }
}

template <class Sink>
HWY_INLINE void copy_grains(const WireInput<float>& from, const WireOutput& to) {
  for_each_grain(to.n, [&](int64_t begin, int64_t n) {
    const float* const upcoming = from.is_neighbours() ? nullptr : upcoming_of(from, begin);
    copy_grain<Sink>(from.grain(begin), upcoming, n, to.grain(begin));
  });
}

void copy(const WireInput<float>& from, const WireOutput& to) {
  if (is_streamed(to.grain(0), array_length(to))) {
    copy_grains<Stream>(from, to);
    hwy::FlushStream();
  } else {
    copy_grains<Assign>(from, to);
  }
}

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrowcast::cpu {
namespace {

HWY_EXPORT(copy);

}  // namespace

void copy_elements(const WireInput<float>& from, const WireOutput& to) { HWY_DYNAMIC_DISPATCH(copy)(from, to); }

}  // namespace narrowcast::cpu
#endif  // HWY_ONCE
