// Tiles in memory, up to kTile elements of an array: what is read of them, with prefetches, and how values are written.
// Included once per instruction set by files that use hwy/foreach_target.h.
#if defined(NARROWCAST_OPS_CPU_WIRE_WIRE_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWCAST_OPS_CPU_WIRE_WIRE_TILES_INL_H_
#undef NARROWCAST_OPS_CPU_WIRE_WIRE_TILES_INL_H_
#else
#define NARROWCAST_OPS_CPU_WIRE_WIRE_TILES_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "ops/cpu/lanes/float_lanes-inl.h"
#include "ops/cpu/wire/wire_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Elements that kernels process at a time; their floats, codes and random words all fit in the first-level cache.
inline constexpr int64_t kTile = kWireGrain;

inline constexpr int64_t kTileBytes = kTile * static_cast<int64_t>(sizeof(float));
inline constexpr int64_t kCacheLine = 64;

// Floats to encode. `upcoming` is the tile kTilesAhead tiles later, to be prefetched meanwhile; null if it is already
// in a cache.
struct TileSource {
  const float* x;
  const float* upcoming;
};

inline constexpr int64_t kTilesAhead = kGrainsAhead;

// Prefetches memory `ahead` bytes after `begin`, whether it exists or not. It belongs to a later tile. The processor
// itself prefetches only while memory is read, and not beyond a page.
HWY_INLINE void prefetch(const void* begin, int64_t ahead, int64_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(begin) + static_cast<uintptr_t>(ahead);
  for (int64_t i = 0; i < bytes; i += kCacheLine) {
    hwy::Prefetch(reinterpret_cast<const uint8_t*>(address + static_cast<uintptr_t>(i)));
  }
}

// x as float32: in place if it is float32, else converted into `tile`.
template <class T>
HWY_INLINE TileSource source_of(const T* x, int64_t n, float* tile) {
  if constexpr (std::is_same_v<T, float>) {
    return {x, x + kTilesAhead * kTile};
  } else {
    const FloatLanes<T> d;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    int64_t i = 0;
    for (; i + lanes <= n; i += lanes) {
      hn::StoreU(load_floats(d, x + i), d, tile + i);
    }
    for (; i < n; ++i) {
      tile[i] = static_cast<float>(x[i]);
    }
    return {tile, nullptr};
  }
}

// Sinks for decoded values, which assign them or add them to existing values.
struct Assign {
  static constexpr bool kFetchesAhead = false;

  template <class D>
  static HWY_INLINE void put(D d, hn::Vec<D> value, float* out) {
    hn::StoreU(value, d, out);
  }
};

// Writes past the caches, for arrays that would not stay in them: the memory is not read before it is written.
struct Stream {
  static constexpr bool kFetchesAhead = false;

  template <class D>
  static HWY_INLINE void put(D d, hn::Vec<D> value, float* out) {
    if constexpr (hn::MaxLanes(D()) > 1) {
      hn::Stream(value, d, out);
    } else {
      hn::StoreU(value, d, out);
    }
  }
};

struct Accumulate {
  static constexpr bool kFetchesAhead = false;

  template <class D>
  static HWY_INLINE void put(D d, hn::Vec<D> value, float* out) {
    hn::StoreU(hn::Add(hn::LoadU(d, out), value), d, out);
  }
};

// A sink for callers that read a tile of several messages in turn: a tile is too short for the processor to recognise a
// stream.
template <class Sink>
struct FetchAhead : Sink {
  static constexpr bool kFetchesAhead = true;
};

// Passes values[0..n) to a sink.
template <class Sink>
HWY_INLINE void put_all(const float* values, int64_t n, float* out) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> d_one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    if constexpr (Sink::kFetchesAhead) {
      prefetch(values + i, kTileBytes, 4 * lanes);
    }
    Sink::put(d, hn::LoadU(d, values + i), out + i);
  }
  for (; i < n; ++i) {
    Sink::put(d_one, hn::LoadU(d_one, values + i), out + i);
  }
}

// Whether an array is too long for the caches: from 1 MiB of float32 on.
HWY_INLINE bool is_long(int64_t n) { return n >= int64_t{1} << 18; }

// Whether the array is also aligned for streaming vectors.
HWY_INLINE bool is_streamed(const void* out, int64_t n) {
  constexpr uintptr_t kAlignment = 64;
  return is_long(n) && reinterpret_cast<uintptr_t>(out) % kAlignment == 0;
}

// Calls body(first element, elements) for each grain of an array of n elements.
template <class Body>
HWY_INLINE void for_each_grain(int64_t n, const Body& body) {
  for (int64_t i = 0; i < n; i += kTile) {
    body(i, std::min(kTile, n - i));
  }
}

// A lower bound for the array's length: a thread's part of a reordered array is spread over all of it.
template <class T>
HWY_INLINE int64_t array_length(const WireElements<T>& part) {
  return std::max(part.n, part.order.grains * kTile);
}

// The grain to prefetch while the grain at `begin` is processed; null if there are no more, or if it may already be
// cached.
template <class T>
HWY_INLINE const T* upcoming_of(const WireInput<T>& input, int64_t begin) {
  return is_long(array_length(input)) ? input.upcoming(begin) : nullptr;
}

// Division by a number of ranks, or by 1. For a power of two it multiplies by the inverse, which is faster and gives
// the same result.
class Quotient {
 public:
  explicit HWY_INLINE Quotient(int64_t divisor)
      : is_power_((divisor & (divisor - 1)) == 0), divisor_(static_cast<float>(divisor)), inverse_(1.0F / divisor_) {}

  template <class D>
  HWY_INLINE hn::Vec<D> of(D d, hn::Vec<D> sum) const {
    return is_power_ ? hn::Mul(sum, hn::Set(d, inverse_)) : hn::Div(sum, hn::Set(d, divisor_));
  }

 private:
  const bool is_power_;
  const float divisor_;
  const float inverse_;
};

// Passes the quotients of sums[0..n) to a sink.
template <class Sink>
HWY_INLINE void put_quotients(const float* sums, int64_t n, const Quotient& quotient, float* out) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> d_one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    Sink::put(d, quotient.of(d, hn::LoadU(d, sums + i)), out + i);
  }
  for (; i < n; ++i) {
    Sink::put(d_one, quotient.of(d_one, hn::LoadU(d_one, sums + i)), out + i);
  }
}

HWY_INLINE void divide(float* sums, int64_t n, const Quotient& quotient) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < n; i += lanes) {  // A tile has room for whole vectors.
    hn::Store(quotient.of(d, hn::Load(d, sums + i)), d, sums + i);
  }
}

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NARROWCAST_OPS_CPU_WIRE_WIRE_TILES_INL_H_
