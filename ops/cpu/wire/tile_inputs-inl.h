// The inputs of a message's tile: floats that are prefetched, and the random words of their positions
// (ops/codec/wire_rounding.h), many at a time. Included once per instruction set by files that use
// hwy/foreach_target.h.
#if defined(NARROWCAST_OPS_CPU_WIRE_TILE_INPUTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWCAST_OPS_CPU_WIRE_TILE_INPUTS_INL_H_
#undef NARROWCAST_OPS_CPU_WIRE_TILE_INPUTS_INL_H_
#else
#define NARROWCAST_OPS_CPU_WIRE_TILE_INPUTS_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstdint>
#include <type_traits>

#include "ops/codec/wire_rounding.h"
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

#if HWY_TARGET != HWY_SCALAR

// Philox on one counter per lane of 64 bits. The low halves hold the words; the high halves are undefined, as the
// multiplication leaves the products' high halves there.
template <class D>
struct PhiloxLanes {
  hn::Vec<D> word[4];

  HWY_INLINE void round(D d, uint32_t key0, uint32_t key1) {
    const hn::Repartition<uint32_t, D> d_words;
    const auto multiply = [&](hn::Vec<D> a, uint32_t b) {
      return hn::MulEven(hn::BitCast(d_words, a), hn::Set(d_words, b));
    };
    const auto product0 = multiply(word[0], codec::wire::kPhiloxMultiplier0);
    const auto product1 = multiply(word[2], codec::wire::kPhiloxMultiplier1);
    word[0] = hn::Xor(hn::Xor(hn::ShiftRight<32>(product1), word[1]), hn::Set(d, key0));
    word[1] = product1;
    word[2] = hn::Xor(hn::Xor(hn::ShiftRight<32>(product0), word[3]), hn::Set(d, key1));
    word[3] = product0;
  }

  HWY_INLINE void run(D d, uint64_t key) {
    auto key0 = static_cast<uint32_t>(key);
    auto key1 = static_cast<uint32_t>(key >> 32);
    for (int i = 0; i < codec::wire::kPhiloxRounds; ++i) {
      round(d, key0, key1);
      key0 += codec::wire::kPhiloxWeyl0;
      key1 += codec::wire::kPhiloxWeyl1;
    }
  }
};

// Even lanes have the first half of the counters and odd lanes the second half, so that pairs of words interleave in
// order.
template <class D>
HWY_INLINE hn::Vec<D> quad_offsets(D d) {
  const auto lane = hn::Iota(d, 0);
  const auto half = hn::Set(d, hn::Lanes(d) / 2);
  const auto is_odd = hn::Eq(hn::And(lane, hn::Set(d, 1)), hn::Set(d, 1));
  return hn::Add(hn::ShiftRight<1>(lane), hn::IfThenElseZero(is_odd, half));
}

// Random words of up to kElements elements, in one array.
template <int64_t kElements>
class RandomWords {
 public:
  // The words of the first n elements.
  const uint32_t* fill(const codec::wire::Rounding& rounding, int64_t n) {
    const hn::ScalableTag<uint64_t> d;
    const hn::Repartition<uint32_t, decltype(d)> d_words;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    const auto skipped = static_cast<int64_t>(rounding.position % 4);
    auto quad = hn::Add(hn::Set(d, rounding.position / 4), quad_offsets(d));
    for (int64_t i = 0; i < n + skipped; i += 4 * lanes) {
      PhiloxLanes<decltype(d)> lane{
          {quad, hn::ShiftRight<32>(quad), hn::Set(d, rounding.step), hn::Set(d, rounding.step >> 32)}};
      lane.run(d, rounding.seed);
      const auto pair0 = join(d, lane.word[0], lane.word[1]);
      const auto pair1 = join(d, lane.word[2], lane.word[3]);
      hn::StoreU(hn::BitCast(d_words, hn::InterleaveLower(d, pair0, pair1)), d_words, words_ + i);
      hn::StoreU(hn::BitCast(d_words, hn::InterleaveUpper(d, pair0, pair1)), d_words, words_ + i + 2 * lanes);
      quad = hn::Add(quad, hn::Set(d, static_cast<uint64_t>(lanes)));
    }
    return words_ + skipped;
  }

 private:
  template <class D>
  static HWY_INLINE hn::Vec<D> join(D d, hn::Vec<D> low, hn::Vec<D> high) {
    return hn::Or(hn::And(low, hn::Set(d, 0xFFFFFFFFU)), hn::ShiftLeft<32>(high));
  }

  alignas(64) uint32_t words_[kElements + 64];
};

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NARROWCAST_OPS_CPU_WIRE_TILE_INPUTS_INL_H_
