// Conversion of blocks of 32 codes to the planes of their bits, each a word of 32 bits, and back
// (ops/codec/variable_width.h). Included once per instruction set that has vectors, by files that use
// hwy/foreach_target.h.
//
// Bytes have 8 planes. Each 8 bytes are transposed as a square of 8 by 8 bits, an operation that is its own inverse,
// and then their bytes are sorted by planes. The transposition takes three exchanges (H. Warren, "Hacker's Delight",
// 7-3). If the processor has GFNI, it takes one product of bit matrices, between two permutations of bytes.
//
// All 8 planes of a byte are written or read for any width, so that there is no branch on the width. Planes after a
// block's width are overwritten by the next block, or ignored. If kTakesWidths is false, codes are shifted to the width
// of a byte.
#if defined(NARROWCAST_OPS_CPU_WIRE_BIT_PLANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWCAST_OPS_CPU_WIRE_BIT_PLANES_INL_H_
#undef NARROWCAST_OPS_CPU_WIRE_BIT_PLANES_INL_H_
#else
#define NARROWCAST_OPS_CPU_WIRE_BIT_PLANES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "ops/codec/variable_headers.h"
#include "ops/cpu/variable/plane_tables.h"

// Processors with AVX3_DL have GFNI, but Highway 1.0 neither enables it there nor checks for it.
// NARROWCAST_BEFORE_PLANES, used instead of HWY_BEFORE_NAMESPACE, enables it; the dispatching code checks for it.
#undef NARROWCAST_HAS_GFNI
#undef NARROWCAST_BEFORE_PLANES
#if HWY_TARGET == HWY_AVX3_DL && HWY_COMPILER_GCC && !HWY_COMPILER_CLANG
#define NARROWCAST_HAS_GFNI 1
#define NARROWCAST_BEFORE_PLANES \
  HWY_BEFORE_NAMESPACE();        \
  _Pragma("GCC target(\"gfni\")") static_assert(true, "")
#else
#define NARROWCAST_HAS_GFNI 0
#define NARROWCAST_BEFORE_PLANES HWY_BEFORE_NAMESPACE()
#endif

#if HWY_TARGET != HWY_SCALAR
NARROWCAST_BEFORE_PLANES;
namespace narrowcast::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int64_t kPlanes = 8;  // Planes of a byte.
inline constexpr int64_t kPlanesBytes = kPlanes * codec::wire::kWordBytes;
static_assert(codec::wire::kVariableBlock == 32 && kPlanesBytes == 32, "a block of bytes is as long as its planes");

// A block of bytes is one vector, or two of 16 bytes.
using PlaneBytes = hn::CappedTag<uint8_t, 32>;
using PlaneVector = hn::Vec<PlaneBytes>;
inline constexpr int64_t kPlaneLanes = hn::MaxLanes(PlaneBytes());
inline constexpr int64_t kPlaneVectors = kPlanesBytes / kPlaneLanes;

#if NARROWCAST_HAS_GFNI

// A permutation of a vector's bytes.
HWY_INLINE PlaneVector ordered(PlaneVector bytes, const uint8_t (&places)[kPlanesBytes]) {
  return PlaneVector{_mm256_permutexvar_epi8(hn::Load(PlaneBytes(), places).raw, bytes.raw)};
}

// The low bytes of two vectors as the rows of a product.
HWY_INLINE PlaneVector rows_of_codes(hn::Vec512<uint32_t> first, hn::Vec512<uint32_t> second) {
  const auto places = hn::Load(hn::Full512<uint8_t>(), kPlaneOrders.rows_of_codes);
  return PlaneVector{_mm512_castsi512_si256(_mm512_permutex2var_epi8(first.raw, places.raw, second.raw))};
}

// Constructed before the loop over blocks.
class BitPlanes {
 public:
  static constexpr bool kTakesWidths = true;

  HWY_INLINE BitPlanes() {}

  // Writes the planes of a block of codes of `width` bits, given as rows (PlaneOrders), followed by undefined bytes.
  HWY_INLINE void store(PlaneVector (&block)[1], uint32_t width, uint8_t* words) const {
    hn::StoreU(ordered(transposed(block[0]), kPlaneOrders.planes_of_rows[width]), PlaneBytes(), words);
  }

  // Reads the planes of such a block as bytes; ignores the bytes after them.
  HWY_INLINE void load(const uint8_t* words, uint32_t width, PlaneVector (&block)[1]) const {
    block[0] = transposed(ordered(hn::LoadU(PlaneBytes(), words), kPlaneOrders.rows_of_planes[width]));
  }

 private:
  // Bit j of byte i becomes bit i of row j, in each 8 bytes. Bit j of byte i of the product is the parity of byte i of
  // the first factor AND byte 7 - j of the second.
  HWY_INLINE PlaneVector transposed(PlaneVector rows) const {
    return PlaneVector{_mm256_gf2p8affine_epi64_epi8(diagonal_.raw, rows.raw, 0)};
  }

  const PlaneVector diagonal_ =
      hn::BitCast(PlaneBytes(), hn::Set(hn::Repartition<uint64_t, PlaneBytes>(), kPlaneTables.diagonal));
};

#else

// Constructed before the loop over blocks.
class BitPlanes {
 public:
  static constexpr bool kTakesWidths = false;

  HWY_INLINE BitPlanes() {
    for (int i = 0; i < 3; ++i) {
      masks_[i] = hn::Set(Squares(), kPlaneTables.masks[i]);
    }
  }

  // Writes the planes of a block of bytes, beginning with bit 7.
  HWY_INLINE void store(PlaneVector (&block)[kPlaneVectors], uint32_t /*width*/, uint8_t* words) const {
    for (PlaneVector& bytes : block) {
      bytes = hn::TableLookupBytes(transposed(bytes), by_plane_);
    }
    exchange_quarters(block);
    for (int64_t i = 0; i < kPlaneVectors; ++i) {
      hn::StoreU(hn::TableLookupBytes(block[i], join_halves_), PlaneBytes(), words + i * kPlaneLanes);
    }
  }

  // Reads 8 planes as a block of bytes.
  HWY_INLINE void load(const uint8_t* words, uint32_t /*width*/, PlaneVector (&block)[kPlaneVectors]) const {
    for (int64_t i = 0; i < kPlaneVectors; ++i) {
      block[i] = hn::TableLookupBytes(hn::LoadU(PlaneBytes(), words + i * kPlaneLanes), part_halves_);
    }
    exchange_quarters(block);
    for (PlaneVector& bytes : block) {
      bytes = transposed(hn::TableLookupBytes(bytes, by_element_));
    }
  }

 private:
  using Squares = hn::Repartition<uint64_t, PlaneBytes>;

  static HWY_INLINE PlaneVector order(const uint8_t (&places)[16]) { return hn::LoadDup128(PlaneBytes(), places); }

  // Exchanges the bits set in `mask` with the bits kDistance above them.
  template <int kDistance>
  static HWY_INLINE hn::Vec<Squares> exchange_bits(hn::Vec<Squares> x, hn::Vec<Squares> mask) {
    const auto different = hn::And(hn::Xor(x, hn::ShiftRight<kDistance>(x)), mask);
    return hn::Xor(x, hn::Xor(different, hn::ShiftLeft<kDistance>(different)));
  }

  // Bit j of byte i becomes bit i of byte j, in each 8 bytes.
  HWY_INLINE PlaneVector transposed(PlaneVector bytes) const {
    const auto pairs = exchange_bits<7>(hn::BitCast(Squares(), bytes), masks_[0]);
    return hn::BitCast(PlaneBytes(), exchange_bits<28>(exchange_bits<14>(pairs, masks_[1]), masks_[2]));
  }

  template <class D = Squares>
  HWY_INLINE void exchange_quarters(PlaneVector (&block)[kPlaneVectors]) const {
    const D d;
    if constexpr (hn::MaxLanes(D()) == 4) {
      const auto quarters = hn::SetTableIndices(d, kPlaneTables.quarters);
      block[0] = hn::BitCast(PlaneBytes(), hn::TableLookupLanes(hn::BitCast(d, block[0]), quarters));
    } else {
      const auto first = hn::BitCast(d, block[0]);
      const auto second = hn::BitCast(d, block[kPlaneVectors - 1]);
      block[0] = hn::BitCast(PlaneBytes(), hn::InterleaveLower(d, first, second));
      block[kPlaneVectors - 1] = hn::BitCast(PlaneBytes(), hn::InterleaveUpper(d, first, second));
    }
  }

  hn::Vec<Squares> masks_[3];
  const PlaneVector by_plane_ = order(kPlaneTables.by_plane);
  const PlaneVector join_halves_ = order(kPlaneTables.join_halves);
  const PlaneVector part_halves_ = order(kPlaneTables.part_halves);
  const PlaneVector by_element_ = order(kPlaneTables.by_element);
};

#endif

// Calls body(first element, a vector of int32 codes) until all codes of a block of signed bytes were passed.
template <class Body, class D = hn::ScalableTag<int32_t>>
HWY_INLINE void for_each_vector(const hn::Vec<PlaneBytes> (&block)[kPlaneVectors], const Body& body) {
  const D d;
  const hn::Rebind<int8_t, decltype(d)> d_bytes;
  constexpr int64_t kLanesOfInt = hn::MaxLanes(D());
  if constexpr (2 * kLanesOfInt == kPlaneLanes) {  // Both halves of a vector, without a store to memory.
    const hn::Rebind<uint8_t, D> d_half;
    body(0, hn::PromoteTo(d, hn::BitCast(d_bytes, hn::LowerHalf(d_half, block[0]))));
    body(kLanesOfInt, hn::PromoteTo(d, hn::BitCast(d_bytes, hn::UpperHalf(d_half, block[0]))));
  } else {
    alignas(32) int8_t bytes[kPlanesBytes];
    for (int64_t i = 0; i < kPlaneVectors; ++i) {
      hn::Store(hn::BitCast(hn::RebindToSigned<PlaneBytes>(), block[i]), hn::RebindToSigned<PlaneBytes>(),
                bytes + i * kPlaneLanes);
    }
    for (int64_t i = 0; i < kPlanesBytes; i += kLanesOfInt) {
      body(i, hn::PromoteTo(d, hn::LoadU(d_bytes, bytes + i)));
    }
  }
}

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // NARROWCAST_OPS_CPU_WIRE_BIT_PLANES_INL_H_
