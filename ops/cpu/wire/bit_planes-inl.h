// Blocks of 32 codes as planes of their bits, each a word of 32 bits, and back (ops/codec/variable_width.h). Included
// once per instruction set that has vectors, by files that use hwy/foreach_target.h.
//
// Bytes are 8 planes: seen as a square of 8 by 8 bits, 8 bytes are transposed by three exchanges (H. Warren, "Hacker's
// Delight", 7-3), which is the same both ways, and then their bytes are sorted by planes. All 8 planes of a byte are
// written or read whatever the width, so that nothing branches on it: the planes behind a block's width are overwritten
// by the next block, or shifted out.
#if defined(NARROWCAST_OPS_CPU_WIRE_BIT_PLANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWCAST_OPS_CPU_WIRE_BIT_PLANES_INL_H_
#undef NARROWCAST_OPS_CPU_WIRE_BIT_PLANES_INL_H_
#else
#define NARROWCAST_OPS_CPU_WIRE_BIT_PLANES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "ops/codec/variable_width.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int64_t kPlanes = 8;  // Of a byte.
inline constexpr int64_t kPlanesBytes = kPlanes * codec::wire::kWordBytes;
static_assert(codec::wire::kVariableBlock == 32 && kPlanesBytes == 32, "a block of bytes is as long as its planes");

// A block of bytes is one vector, or two of 16 bytes.
using PlaneBytes = hn::CappedTag<uint8_t, 32>;
using PlaneVector = hn::Vec<PlaneBytes>;
inline constexpr int64_t kPlaneLanes = hn::MaxLanes(PlaneBytes());
inline constexpr int64_t kPlaneVectors = kPlanesBytes / kPlaneLanes;

// Bit j of byte i becomes bit i of byte j, in each 8 bytes.
HWY_INLINE PlaneVector transpose_bits(PlaneVector bytes) {
  const PlaneBytes d;
  const hn::Repartition<uint64_t, decltype(d)> d_square;
  auto x = hn::BitCast(d_square, bytes);
  const auto exchange = [&](auto distance, uint64_t mask) {
    constexpr int kDistance = decltype(distance)::value;
    const auto different = hn::And(hn::Xor(x, hn::ShiftRight<kDistance>(x)), hn::Set(d_square, mask));
    x = hn::Xor3(x, different, hn::ShiftLeft<kDistance>(different));
  };
  exchange(std::integral_constant<int, 7>(), 0x00AA00AA00AA00AAU);
  exchange(std::integral_constant<int, 14>(), 0x0000CCCC0000CCCCU);
  exchange(std::integral_constant<int, 28>(), 0x00000000F0F0F0F0U);
  return hn::BitCast(d, x);
}

// The order of bytes within each 16.
HWY_INLINE PlaneVector shuffle(PlaneVector bytes, const uint8_t (&places)[16]) {
  return hn::TableLookupBytes(bytes, hn::LoadDup128(PlaneBytes(), places));
}

// Exchanges the two middle quarters of a block, each of 8 bytes.
HWY_INLINE void exchange_quarters(PlaneVector (&block)[kPlaneVectors]) {
  const hn::Repartition<uint64_t, PlaneBytes> d;
  if constexpr (kPlaneVectors == 1) {
    alignas(32) static constexpr uint64_t kQuarters[4] = {0, 2, 1, 3};
    const auto quarters = hn::TableLookupLanes(hn::BitCast(d, block[0]), hn::SetTableIndices(d, kQuarters));
    block[0] = hn::BitCast(PlaneBytes(), quarters);
  } else {
    const auto first = hn::BitCast(d, block[0]);
    const auto second = hn::BitCast(d, block[1]);
    block[0] = hn::BitCast(PlaneBytes(), hn::InterleaveLower(d, first, second));
    block[1] = hn::BitCast(PlaneBytes(), hn::InterleaveUpper(d, first, second));
  }
}

// Writes the planes of a block of bytes, that of bit 7 first.
HWY_INLINE void store_planes(PlaneVector (&block)[kPlaneVectors], uint8_t* words) {
  alignas(16) static constexpr uint8_t kByPlane[16] = {7, 15, 6, 14, 5, 13, 4, 12, 3, 11, 2, 10, 1, 9, 0, 8};
  alignas(16) static constexpr uint8_t kJoinHalves[16] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};
  for (PlaneVector& bytes : block) {
    bytes = shuffle(transpose_bits(bytes), kByPlane);
  }
  exchange_quarters(block);
  for (int64_t i = 0; i < kPlaneVectors; ++i) {
    hn::StoreU(shuffle(block[i], kJoinHalves), PlaneBytes(), words + i * kPlaneLanes);
  }
}

// Reads 8 planes, and writes the block's bytes to `bytes`.
HWY_INLINE void load_planes(const uint8_t* words, uint8_t* bytes) {
  alignas(16) static constexpr uint8_t kPartHalves[16] = {0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15};
  alignas(16) static constexpr uint8_t kByElement[16] = {14, 12, 10, 8, 6, 4, 2, 0, 15, 13, 11, 9, 7, 5, 3, 1};
  PlaneVector block[kPlaneVectors];
  for (int64_t i = 0; i < kPlaneVectors; ++i) {
    block[i] = shuffle(hn::LoadU(PlaneBytes(), words + i * kPlaneLanes), kPartHalves);
  }
  exchange_quarters(block);
  for (int64_t i = 0; i < kPlaneVectors; ++i) {
    hn::Store(transpose_bits(shuffle(block[i], kByElement)), PlaneBytes(), bytes + i * kPlaneLanes);
  }
}

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // NARROWCAST_OPS_CPU_WIRE_BIT_PLANES_INL_H_
