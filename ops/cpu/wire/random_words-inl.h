// The random words of positions (ops/codec/wire_rounding.h), many at a time. Included once per instruction set that has
// vectors, by files that use hwy/foreach_target.h.
#if defined(NARROWCAST_OPS_CPU_WIRE_RANDOM_WORDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWCAST_OPS_CPU_WIRE_RANDOM_WORDS_INL_H_
#undef NARROWCAST_OPS_CPU_WIRE_RANDOM_WORDS_INL_H_
#else
#define NARROWCAST_OPS_CPU_WIRE_RANDOM_WORDS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "ops/codec/wire_rounding.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

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

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // NARROWCAST_OPS_CPU_WIRE_RANDOM_WORDS_INL_H_
