// Widths and headers of blocks from the extents of their numbers (ops/codec/variable_headers.h), many blocks at a time.
// Included once per instruction set by files that use hwy/foreach_target.h.
#if defined(NARROWCAST_OPS_CPU_WIRE_VARIABLE_HEADERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWCAST_OPS_CPU_WIRE_VARIABLE_HEADERS_INL_H_
#undef NARROWCAST_OPS_CPU_WIRE_VARIABLE_HEADERS_INL_H_
#else
#define NARROWCAST_OPS_CPU_WIRE_VARIABLE_HEADERS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "ops/codec/variable_headers.h"
#include "ops/cpu/variable/variable_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using codec::wire::BlockExtent;
using codec::wire::kWordBytes;
using codec::wire::StepCodes;

#if HWY_TARGET == HWY_SCALAR

// Without vectors, the plain codec is used.

uint32_t largest_of_extents(const BlockExtent* extents, int64_t blocks) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < blocks; ++i) {
    largest = std::max(largest, extents[i].larger());
  }
  return largest;
}

int64_t bytes_of_widths(const BlockExtent* extents, int64_t blocks, int64_t stride, const StepCodes& codes) {
  int64_t words = 0;
  for (int64_t begin = 0; begin < blocks; begin += stride * kGrainBlocks) {
    for (int64_t i = begin; i < std::min(begin + kGrainBlocks, blocks); ++i) {
      words += codes.width(extents[i]);
    }
  }
  return words * kWordBytes;
}

HWY_INLINE void headers_of_grain(const BlockExtent* extents, const StepCodes& codes, uint8_t* headers) {
  for (int64_t i = 0; i < kGrainBlocks; ++i) {
    headers[i] = static_cast<uint8_t>(codes.header(extents[i]));
  }
}

#else

using BlockFloats = hn::ScalableTag<float>;  // Each lane is a block.
using BlockInts = hn::RebindToSigned<BlockFloats>;
using BlockBits = hn::RebindToUnsigned<BlockFloats>;

HWY_INLINE hn::Vec<BlockInts> set_ints(uint32_t number) { return hn::Set(BlockInts(), static_cast<int32_t>(number)); }

// BlockExtents of blocks.
struct ExtentLanes {
  hn::Vec<BlockInts> bits;

  HWY_INLINE explicit ExtentLanes(const BlockExtent* extents)
      : bits(hn::LoadU(BlockInts(), reinterpret_cast<const int32_t*>(extents))) {}

  HWY_INLINE hn::Vec<BlockInts> larger() const {
    return hn::And(bits, set_ints(~BlockExtent::kPositive & ~(codec::wire::kScaleUnit - 1)));
  }
  HWY_INLINE hn::Vec<BlockInts> smaller() const { return hn::ShiftLeft<16>(bits); }
  HWY_INLINE hn::Vec<BlockInts> is_positive() const {  // 1 or 0.
    return hn::BitCast(BlockInts(), hn::ShiftRight<31>(hn::BitCast(BlockBits(), bits)));
  }
};

uint32_t largest_of_extents(const BlockExtent* extents, int64_t blocks) {
  const BlockInts d;
  auto largest = hn::Zero(d);
  for (int64_t i = 0; i < blocks; i += static_cast<int64_t>(hn::Lanes(d))) {  // There are zeros after the last block.
    largest = hn::Max(largest, ExtentLanes(extents + i).larger());
  }
  return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(d, largest)));
}

// StepCodes::width of blocks.
class WidthLanes {
 public:
  HWY_INLINE explicit WidthLanes(const StepCodes& codes)
      : inverse_(hn::Set(BlockFloats(), codes.inverse)),
        reach_(hn::Set(BlockFloats(), codes.reach())),
        rest_(hn::Set(BlockFloats(), 1 - codes.reach())),
        below_faint_(set_ints(codes.least_faint - 1)) {}

  HWY_INLINE hn::Vec<BlockInts> of(const ExtentLanes& extents) const {
    const BlockFloats d;
    const BlockInts d_int;
    const auto larger = hn::Mul(hn::BitCast(d, extents.larger()), inverse_);
    const auto smaller = hn::Mul(hn::BitCast(d, extents.smaller()), inverse_);
    const auto a = hn::Sub(larger, reach_);
    const auto c = hn::Add(smaller, rest_);
    const auto without = hn::Max(hn::Max(a, c), hn::Set(d, StepCodes::kFaintRange));
    const auto of_sides =
        hn::Max(hn::Mul(a, hn::Set(d, StepCodes::kPerLarger)), hn::Mul(c, hn::Set(d, StepCodes::kPerSmaller)));
    const auto about = hn::Max(of_sides, hn::Set(d, StepCodes::kAboveFaintRange));
    const auto range = hn::IfThenElse(hn::Gt(without, hn::Set(d, StepCodes::kMostOwnRange)), hn::Add(larger, rest_),
                                      hn::Min(without, about));
    const auto digits = hn::ShiftRight<23>(hn::Add(hn::BitCast(d_int, range), set_ints(StepCodes::kWidthOfRange)));
    return hn::IfThenElseZero(hn::Gt(extents.larger(), below_faint_), digits);
  }

 private:
  hn::Vec<BlockFloats> inverse_;
  hn::Vec<BlockFloats> reach_;
  hn::Vec<BlockFloats> rest_;
  hn::Vec<BlockInts> below_faint_;
};

int64_t bytes_of_widths(const BlockExtent* extents, int64_t blocks, int64_t stride, const StepCodes& codes) {
  const BlockInts d;
  constexpr int64_t kAtOnce = int64_t{1} << 22;  // The number of blocks whose sum a lane can hold.
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const WidthLanes widths(codes);
  int64_t words = 0;
  for (int64_t first = 0; first < blocks; first += kAtOnce * stride) {
    const int64_t end = std::min(first + kAtOnce * stride, blocks);
    auto sums0 = hn::Zero(d);
    auto sums1 = hn::Zero(d);
    for (int64_t begin = first; begin < end; begin += stride * kGrainBlocks) {
      for (int64_t i = begin; i < begin + kGrainBlocks; i += 2 * lanes) {  // There are zeros after the last block.
        sums0 = hn::Add(sums0, widths.of(ExtentLanes(extents + i)));
        sums1 = hn::Add(sums1, widths.of(ExtentLanes(extents + i + lanes)));
      }
    }
    words += hn::GetLane(hn::SumOfLanes(d, hn::Add(sums0, sums1)));
  }
  return words * kWordBytes;
}

// StepCodes::least_step_of blocks.
HWY_INLINE hn::Vec<BlockFloats> least_steps_of(const ExtentLanes& extents, hn::Vec<BlockFloats> per_larger,
                                               hn::Vec<BlockFloats> per_smaller) {
  const BlockFloats d;
  return hn::Max(hn::Mul(hn::BitCast(d, extents.larger()), per_larger),
                 hn::Mul(hn::BitCast(d, extents.smaller()), per_smaller));
}

// Numbers for each width up to kMostOwnWidth; for other widths they are undefined.
struct ByWidth {
  static constexpr uint32_t kNumbers = 8;
  static_assert(codec::wire::kMostOwnWidth - codec::wire::kFaintWidth < kNumbers, "each must have a place");

  alignas(64) float at[kNumbers * 2];  // A vector of 16 is read.

  template <class OfWidth>
  static constexpr ByWidth made(const OfWidth& of_width) {
    ByWidth numbers{};
    for (uint32_t width = codec::wire::kFaintWidth; width <= codec::wire::kMostOwnWidth; ++width) {
      numbers.at[width % kNumbers] = of_width(width);
    }
    return numbers;
  }

  HWY_INLINE hn::Vec<BlockFloats> of(hn::Vec<BlockInts> widths) const {
    const BlockFloats d;
    const auto places = hn::And(widths, set_ints(kNumbers - 1));
    if constexpr (hn::MaxLanes(BlockFloats()) >= kNumbers) {
      return hn::TableLookupLanes(hn::Load(d, at), hn::IndicesFromVec(d, places));
    } else {
      return hn::GatherIndex(d, at, places);
    }
  }
};

// The factors of extents in StepCodes::header, without and with a zero point.
struct StepReciprocals {
  ByWidth larger;
  ByWidth smaller;
  ByWidth larger_about;
  ByWidth smaller_about;

  static constexpr StepReciprocals made(float reach) {
    constexpr auto kZeroPoint = &codec::wire::zero_point_of_width;
    return {ByWidth::made([=](uint32_t w) { return StepCodes::per_larger(w, 0, reach); }),
            ByWidth::made([=](uint32_t w) { return StepCodes::per_smaller(w, 0, reach); }),
            ByWidth::made([=](uint32_t w) { return StepCodes::per_larger(w, kZeroPoint(w), reach); }),
            ByWidth::made([=](uint32_t w) { return StepCodes::per_smaller(w, kZeroPoint(w), reach); })};
  }
};

inline constexpr StepReciprocals kReciprocals[] = {StepReciprocals::made(StepCodes::kReachToNearest),
                                                   StepReciprocals::made(StepCodes::kReachAtRandom)};

// StepCodes::header of each block.
HWY_INLINE void headers_of_grain(const BlockExtent* extents, const StepCodes& codes, uint8_t* headers) {
  const BlockFloats d;
  const BlockInts d_int;
  const hn::Rebind<uint8_t, BlockFloats> d_bytes;
  const auto step = set_ints(uint32_t{codes.step} << 16);
  const StepReciprocals& per = kReciprocals[codes.stochastic ? 1 : 0];
  const auto faint_width = set_ints(codec::wire::kFaintWidth);
  const auto most_own_width = set_ints(codec::wire::kMostOwnWidth);
  const auto most_faint = set_ints(codes.most_faint());
  const WidthLanes widths(codes);
  for (int64_t i = 0; i < kGrainBlocks; i += static_cast<int64_t>(hn::Lanes(d))) {
    const ExtentLanes of_blocks(extents + i);
    const auto width = widths.of(of_blocks);
    const auto is_own = hn::Gt(width, faint_width);
    const auto without = least_steps_of(of_blocks, per.larger.of(width), per.smaller.of(width));
    const auto about = least_steps_of(of_blocks, per.larger_about.of(width), per.smaller_about.of(width));
    const auto needed = hn::BitCast(d_int, hn::Min(about, without));
    const auto distance = hn::Max(hn::Sub(step, needed), hn::Zero(d_int));
    const auto eighths =
        hn::Min(hn::ShiftRight<codec::wire::kFractionShift>(distance), set_ints(codec::wire::kMostFraction));
    const auto zero_point_bit =
        hn::IfThenElseZero(hn::RebindMask(d_int, hn::Lt(about, without)), set_ints(codec::wire::kZeroPointBit));
    const auto width_bits = hn::ShiftLeft<codec::wire::kWidthShift>(hn::Sub(width, set_ints(1)));
    const auto own = hn::Or(hn::Or(width_bits, zero_point_bit), hn::ShiftLeft<2>(eighths));
    const auto quarters = hn::Min(hn::ShiftRight<codec::wire::kFaintShift>(distance), most_faint);
    const auto faint = hn::Add(hn::Add(quarters, quarters), set_ints(codec::wire::kFirstFaint));
    const auto narrow = hn::Or(hn::IfThenElse(is_own, own, faint), of_blocks.is_positive());
    const auto any = hn::IfThenElse(hn::Gt(width, most_own_width), hn::Sub(width, most_own_width), narrow);
    const auto of_zeros = hn::Eq(width, hn::Zero(d_int));
    hn::StoreU(hn::DemoteTo(d_bytes, hn::IfThenZeroElse(of_zeros, any)), d_bytes, headers + i);
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NARROWCAST_OPS_CPU_WIRE_VARIABLE_HEADERS_INL_H_
