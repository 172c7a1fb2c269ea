// The elements of messages (ops/codec/wire_elements.h), one per lane of float32, and conversion of the codes of block
// formats between lanes, bytes and the bits of a message. Included once per instruction set that has vectors, by files
// that use hwy/foreach_target.h. The functions on fixed vectors of 16 bytes are the same on all of them.
#if defined(NARROWCAST_OPS_CPU_WIRE_ELEMENT_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWCAST_OPS_CPU_WIRE_ELEMENT_LANES_INL_H_
#undef NARROWCAST_OPS_CPU_WIRE_ELEMENT_LANES_INL_H_
#else
#define NARROWCAST_OPS_CPU_WIRE_ELEMENT_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "ops/codec/wire_elements.h"
#include "ops/cpu/lanes/float_lanes-inl.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
using BitsOf = hn::Vec<hn::RebindToUnsigned<D>>;

// Lanes of an Element of block formats. encode() gives codes in the low 8 bits of each lane, with undefined bits above.
// decode() reads codes of one byte each.
template <class Element>
struct ElementLanes;

template <int kBits>
struct ElementLanes<codec::wire::SymmetricInt<kBits>> {
  using Element = codec::wire::SymmetricInt<kBits>;

  template <class D>
  static HWY_INLINE BitsOf<D> encode(D d, hn::Vec<D> y) {
    return hn::BitCast(hn::RebindToUnsigned<D>(), hn::Add(y, hn::Set(d, Element::kRounder)));
  }

  template <class D>
  static HWY_INLINE BitsOf<D> encode(D d, hn::Vec<D> y, BitsOf<D> random) {
    const hn::RebindToSigned<D> d_int;
    const auto greatest = hn::Set(d, Element::kGreatest);
    const auto clamped = hn::Max(hn::Min(y, greatest), hn::Neg(greatest));
    const auto fixed = hn::ConvertTo(d_int, hn::Mul(clamped, hn::Set(d, Element::kUnits)));
    const auto sum = hn::Add(fixed, hn::BitCast(d_int, hn::ShiftRight<8>(random)));
    return hn::BitCast(hn::RebindToUnsigned<D>(), hn::ShiftRight<24>(sum));
  }

  template <class D>
  static HWY_INLINE hn::Vec<D> decode(D d, const uint8_t* codes) {
    const auto code = hn::LoadU(hn::Rebind<int8_t, D>(), reinterpret_cast<const int8_t*>(codes));
    return hn::ConvertTo(d, hn::PromoteTo(hn::RebindToSigned<D>(), code));
  }
};

template <>
struct ElementLanes<codec::wire::Float8E4M3> {
  using Element = codec::wire::Float8E4M3;
  static constexpr int kCut = Element::kCut;

  template <class D>
  static HWY_INLINE BitsOf<D> encode(D d, hn::Vec<D> y) {
    const hn::RebindToUnsigned<D> d_bits;
    const auto magnitude = hn::BitCast(d_bits, hn::Abs(y));
    const auto odd = hn::And(hn::ShiftRight<kCut>(magnitude), hn::Set(d_bits, 1U));
    const auto rounded = hn::Add(hn::Add(magnitude, odd), hn::Set(d_bits, Element::kOdd / 2 - 1 - Element::kRebias));
    const auto subnormal = hn::BitCast(d_bits, hn::Add(hn::Abs(y), hn::Set(d, Element::kRounder)));  // The code is in
                                                                                                     // the low bits.
    return with_sign_of(d, y, hn::IfThenElse(is_subnormal(d, y), subnormal, hn::ShiftRight<kCut>(rounded)));
  }

  template <class D>
  static HWY_INLINE BitsOf<D> encode(D d, hn::Vec<D> y, BitsOf<D> random) {
    const hn::RebindToUnsigned<D> d_bits;
    const auto magnitude = hn::Min(hn::Abs(y), hn::Set(d, Element::kGreatest));
    const auto normal = hn::Sub(hn::BitCast(d_bits, magnitude), hn::Set(d_bits, Element::kRebias));
    const auto small = hn::Min(magnitude, hn::Set(d, Element::kLeastNormal));
    const auto subnormal = hn::ConvertTo(hn::RebindToSigned<D>(), hn::Mul(small, hn::Set(d, Element::kUnits)));
    const auto fixed = hn::IfThenElse(is_subnormal(d, y), hn::BitCast(d_bits, subnormal), normal);
    return with_sign_of(d, y, hn::ShiftRight<kCut>(hn::Add(fixed, hn::ShiftRight<32 - kCut>(random))));
  }

  template <class D>
  static HWY_INLINE hn::Vec<D> decode(D d, const uint8_t* codes) {
    const hn::RebindToUnsigned<D> d_bits;
    const auto code = hn::PromoteTo(d_bits, hn::LoadU(hn::Rebind<uint8_t, D>(), codes));
    const auto magnitude = hn::And(code, hn::Set(d_bits, Element::kNan));
    const auto normal = hn::BitCast(d, hn::Add(hn::ShiftLeft<kCut>(magnitude), hn::Set(d_bits, Element::kRebias)));
    const auto subnormal = hn::Sub(hn::Add(normal, normal), hn::Set(d, Element::kLeastNormal));
    const auto sign = hn::ShiftLeft<24>(hn::Xor(code, magnitude));
    const auto number = hn::IfThenElse(hn::Lt(normal, hn::Set(d, Element::kLeastNormal)), subnormal, normal);
    const auto value = hn::BitCast(d, hn::Or(hn::BitCast(d_bits, number), sign));
    const auto is_nan = hn::Eq(magnitude, hn::Set(d_bits, Element::kNan));
    return hn::IfThenElse(hn::RebindMask(d, is_nan), hn::BitCast(d, hn::Set(d_bits, codec::kQuietNanBits)), value);
  }

 private:
  template <class D>
  static HWY_INLINE hn::Mask<hn::RebindToUnsigned<D>> is_subnormal(D d, hn::Vec<D> y) {
    return hn::RebindMask(hn::RebindToUnsigned<D>(), hn::Lt(hn::Abs(y), hn::Set(d, Element::kLeastNormal)));
  }

  // The bits of subnormals contain those of the constant that was added, all above the low byte.
  template <class D>
  static HWY_INLINE BitsOf<D> with_sign_of(D, hn::Vec<D> y, BitsOf<D> code) {
    const hn::RebindToUnsigned<D> d_bits;
    const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(d_bits, y)), hn::Set(d_bits, Element::kSign));
    return hn::Or(code, sign);
  }
};

// Lanes of an Element of formats without blocks: the type with which float_lanes-inl.h reads and writes it, and
// stochastic rounding of finite numbers to codes.
template <class Element>
struct NumberLanes;

template <>
struct NumberLanes<codec::wire::Bfloat16> {
  using Number = c10::BFloat16;

  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> x, hn::Vec<hn::RebindToUnsigned<D>> random, uint16_t* out) {
    const auto bits = hn::BitCast(hn::RebindToUnsigned<D>(), x);
    store_low_halves(d, hn::ShiftRight<16>(hn::Add(bits, hn::ShiftRight<16>(random))), out);
  }
};

template <>
struct NumberLanes<codec::wire::Binary16> {
  using Number = c10::Half;
  using Element = codec::wire::Binary16;

  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> x, hn::Vec<hn::RebindToUnsigned<D>> random, uint16_t* out) {
    const hn::RebindToUnsigned<D> d_bits;
    const auto magnitude = hn::Abs(x);
    const auto least_normal = hn::BitCast(d, hn::Set(d_bits, Element::kNormalBits));
    const auto small = hn::Mul(hn::Min(magnitude, least_normal), hn::Set(d, Element::kUnits));
    const auto subnormal = hn::BitCast(d_bits, hn::ConvertTo(hn::RebindToSigned<D>(), small));
    const auto normal = hn::Sub(hn::BitCast(d_bits, magnitude), hn::Set(d_bits, Element::kRebias));
    const auto is_subnormal = hn::RebindMask(d_bits, hn::Lt(magnitude, least_normal));
    const auto fixed = hn::IfThenElse(is_subnormal, subnormal, normal);
    const auto code = hn::ShiftRight<13>(hn::Add(fixed, hn::ShiftRight<19>(random)));
    const auto sign = hn::And(hn::ShiftRight<16>(hn::BitCast(d_bits, x)), hn::Set(d_bits, 0x8000U));
    store_low_halves(d, hn::Or(sign, hn::Min(code, hn::Set(d_bits, Element::kInf))), out);
  }
};

// No rounding.
template <>
struct NumberLanes<codec::wire::Binary32> {
  using Number = float;

  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> x, hn::Vec<hn::RebindToUnsigned<D>>, uint32_t* out) {
    hn::StoreU(x, d, reinterpret_cast<float*>(out));
  }
};

using Bytes16 = hn::Full128<uint8_t>;

// The low bytes of a vector's lanes, at position `kPart` of each quarter: 4 bytes of each 16.
template <int kPart, class D>
HWY_INLINE hn::Vec<hn::Repartition<uint8_t, D>> low_bytes(D d, hn::Vec<D> lanes) {
  const hn::Repartition<uint8_t, D> d_bytes;
  alignas(16) static constexpr uint32_t kPlaces[4] = {kPart == 0 ? 0x0C080400U : ~0U, kPart == 1 ? 0x0C080400U : ~0U,
                                                      kPart == 2 ? 0x0C080400U : ~0U, kPart == 3 ? 0x0C080400U : ~0U};
  const auto places = hn::BitCast(d_bytes, hn::LoadDup128(d, kPlaces));
  return hn::TableLookupBytesOr0(hn::BitCast(d_bytes, lanes), places);
}

// The low bytes of all lanes of four vectors, in order.
template <class D>
HWY_INLINE hn::Vec<hn::Repartition<uint8_t, D>> join_low_bytes(D d, const hn::Vec<D> (&lanes)[4]) {
  const auto halves = hn::Or(hn::Or(low_bytes<0>(d, lanes[0]), low_bytes<1>(d, lanes[1])),
                             hn::Or(low_bytes<2>(d, lanes[2]), low_bytes<3>(d, lanes[3])));
  constexpr size_t kBlocks = hn::MaxLanes(D()) / 4;
  if constexpr (kBlocks == 1) {
    return halves;
  } else {
    alignas(64) uint32_t from[4 * kBlocks];
    for (size_t part = 0; part < 4; ++part) {
      for (size_t block = 0; block < kBlocks; ++block) {
        from[part * kBlocks + block] = static_cast<uint32_t>(4 * block + part);
      }
    }
    const auto quads = hn::TableLookupLanes(hn::BitCast(d, halves), hn::SetTableIndices(d, from));
    return hn::BitCast(hn::Repartition<uint8_t, D>(), quads);
  }
}

// Codes that are packed together: in every format they fill whole bytes.
inline constexpr int64_t kPackedCodes = 32;

// Packs kPackedCodes codes, the low kBits bits of one byte each, into 4 * kBits bytes.
template <int kBits>
void pack(const uint8_t* codes, uint8_t* packed);

// Two codes become one byte.
template <>
HWY_INLINE void pack<4>(const uint8_t* codes, uint8_t* packed) {
  const Bytes16 d;
  const hn::Repartition<uint16_t, decltype(d)> d_pairs;
  const auto pairs = [&](const uint8_t* from) {
    const auto pair = hn::And(hn::BitCast(d_pairs, hn::LoadU(d, from)), hn::Set(d_pairs, 0x0F0F));
    return hn::Or(pair, hn::ShiftRight<4>(pair));
  };
  hn::StoreU(hn::ConcatEven(d, hn::BitCast(d, pairs(codes + 16)), hn::BitCast(d, pairs(codes))), d, packed);
}

// Four codes become three bytes: 16 codes give 12 bytes, followed by zeros.
HWY_INLINE hn::Vec<Bytes16> pack_6_bits(const uint8_t* codes) {
  const Bytes16 d;
  const hn::Repartition<uint32_t, decltype(d)> d_quads;
  const auto quad = hn::BitCast(d_quads, hn::LoadU(d, codes));
  const auto field = [&](auto shifted, uint32_t mask) { return hn::And(shifted, hn::Set(d_quads, mask)); };
  const auto low = hn::Or(field(quad, 0x3FU), field(hn::ShiftRight<2>(quad), 0xFC0U));
  const auto high = hn::Or(field(hn::ShiftRight<4>(quad), 0x3F000U), field(hn::ShiftRight<6>(quad), 0xFC0000U));
  alignas(16) static constexpr uint8_t kPlaces[16] = {0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 0x80, 0x80, 0x80, 0x80};
  return hn::TableLookupBytesOr0(hn::BitCast(d, hn::Or(low, high)), hn::Load(d, kPlaces));
}

template <>
HWY_INLINE void pack<6>(const uint8_t* codes, uint8_t* packed) {
  const Bytes16 d;
  const auto first = pack_6_bits(codes);
  const auto second = pack_6_bits(codes + 16);
  hn::StoreU(hn::Or(first, hn::ShiftLeftBytes<12>(d, second)), d, packed);
  const hn::Half<decltype(d)> d_half;
  hn::StoreU(hn::LowerHalf(d_half, hn::ShiftRightBytes<4>(d, second)), d_half, packed + 16);
}

// The inverse of pack: gives the codes as int8.
template <int kBits>
void unpack(const uint8_t* packed, uint8_t* codes);

// Extends the sign of codes of kBits bits to the bits above, in bytes.
template <int kBits>
HWY_INLINE hn::Vec<Bytes16> extend_sign(hn::Vec<Bytes16> codes) {
  const Bytes16 d;
  const auto sign = hn::Set(d, uint8_t{1U << (kBits - 1)});
  return hn::Sub(hn::Xor(codes, sign), sign);
}

template <>
HWY_INLINE void unpack<4>(const uint8_t* packed, uint8_t* codes) {
  const Bytes16 d;
  const hn::Repartition<uint16_t, decltype(d)> d_pairs;
  const auto both = hn::LoadU(d, packed);
  const auto low = extend_sign<4>(hn::And(both, hn::Set(d, uint8_t{0x0F})));
  const auto shifted = hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d_pairs, both)));
  const auto high = extend_sign<4>(hn::And(shifted, hn::Set(d, uint8_t{0x0F})));
  hn::StoreU(hn::InterleaveLower(d, low, high), d, codes);
  hn::StoreU(hn::InterleaveUpper(d, low, high), d, codes + 16);
}

// 16 codes from 12 bytes, which begin at byte kFirst of `bytes`.
template <int kFirst>
HWY_INLINE hn::Vec<Bytes16> unpack_6_bits(hn::Vec<Bytes16> bytes) {
  const Bytes16 d;
  const hn::Repartition<uint32_t, decltype(d)> d_quads;
  alignas(16) static constexpr uint8_t kPlaces[16] = {
      kFirst + 0, kFirst + 1, kFirst + 2, 0x80, kFirst + 3, kFirst + 4,  kFirst + 5,  0x80,
      kFirst + 6, kFirst + 7, kFirst + 8, 0x80, kFirst + 9, kFirst + 10, kFirst + 11, 0x80};
  const auto quad = hn::BitCast(d_quads, hn::TableLookupBytesOr0(bytes, hn::Load(d, kPlaces)));
  const auto field = [&](auto shifted, uint32_t mask) { return hn::And(shifted, hn::Set(d_quads, mask)); };
  const auto low = hn::Or(field(quad, 0x3FU), field(hn::ShiftLeft<2>(quad), 0x3F00U));
  const auto high = hn::Or(field(hn::ShiftLeft<4>(quad), 0x3F0000U), field(hn::ShiftLeft<6>(quad), 0x3F000000U));
  return extend_sign<6>(hn::BitCast(d, hn::Or(low, high)));
}

template <>
HWY_INLINE void unpack<6>(const uint8_t* packed, uint8_t* codes) {
  const Bytes16 d;
  hn::StoreU(unpack_6_bits<0>(hn::LoadU(d, packed)), d, codes);
  hn::StoreU(unpack_6_bits<4>(hn::LoadU(d, packed + 8)), d, codes + 16);
}

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // NARROWCAST_OPS_CPU_WIRE_ELEMENT_LANES_INL_H_
