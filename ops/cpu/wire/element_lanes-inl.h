// The elements of messages (ops/codec/wire_elements.h), one per lane of float32. Included once per instruction set that
// has vectors, by files that use hwy/foreach_target.h.
#if defined(NARROWCAST_OPS_CPU_WIRE_ELEMENT_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWCAST_OPS_CPU_WIRE_ELEMENT_LANES_INL_H_
#undef NARROWCAST_OPS_CPU_WIRE_ELEMENT_LANES_INL_H_
#else
#define NARROWCAST_OPS_CPU_WIRE_ELEMENT_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "ops/codec/wire_elements.h"
#include "ops/cpu/float_lanes-inl.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
using BitsOf = hn::Vec<hn::RebindToUnsigned<D>>;

// Lanes of an Element of block formats. Codes to write are in the low 8 bits of each lane, above them is anything;
// codes to read are in one byte each.
template <class Element>
struct ElementLanes;

template <int kBits>
struct ElementLanes<codec::wire::SymmetricInt<kBits>> {
  using Element = codec::wire::SymmetricInt<kBits>;

  // Adding 1.5 * 2^23 rounds half to even and leaves the whole number in the low bits.
  template <class D>
  static HWY_INLINE BitsOf<D> encode(D d, hn::Vec<D> y) {
    return hn::BitCast(hn::RebindToUnsigned<D>(), hn::Add(y, hn::Set(d, 0x1.8p23F)));
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

  template <class D>
  static HWY_INLINE BitsOf<D> encode(D d, hn::Vec<D> y) {
    const hn::RebindToUnsigned<D> d_bits;
    const auto magnitude = hn::BitCast(d_bits, hn::Abs(y));
    const auto odd = hn::And(hn::ShiftRight<20>(magnitude), hn::Set(d_bits, 1U));
    const auto rounded = hn::Add(hn::Add(magnitude, odd), hn::Set(d_bits, 0x7FFFFU - Element::kRebias));
    const auto subnormal = hn::BitCast(d_bits, hn::Add(hn::Abs(y), hn::Set(d, 0x1p14F)));  // Its low bits.
    return with_sign_of(d, y, hn::IfThenElse(is_subnormal(d, y), subnormal, hn::ShiftRight<20>(rounded)));
  }

  template <class D>
  static HWY_INLINE BitsOf<D> encode(D d, hn::Vec<D> y, BitsOf<D> random) {
    const hn::RebindToUnsigned<D> d_bits;
    const auto magnitude = hn::Min(hn::Abs(y), hn::Set(d, Element::kGreatest));
    const auto normal = hn::Sub(hn::BitCast(d_bits, magnitude), hn::Set(d_bits, Element::kRebias));
    const auto small = hn::Min(magnitude, hn::Set(d, 0x1p-6F));
    const auto subnormal = hn::ConvertTo(hn::RebindToSigned<D>(), hn::Mul(small, hn::Set(d, 0x1p29F)));
    const auto fixed = hn::IfThenElse(is_subnormal(d, y), hn::BitCast(d_bits, subnormal), normal);
    return with_sign_of(d, y, hn::ShiftRight<20>(hn::Add(fixed, hn::ShiftRight<12>(random))));
  }

  template <class D>
  static HWY_INLINE hn::Vec<D> decode(D d, const uint8_t* codes) {
    const hn::RebindToUnsigned<D> d_bits;
    const auto code = hn::PromoteTo(d_bits, hn::LoadU(hn::Rebind<uint8_t, D>(), codes));
    const auto magnitude = hn::And(code, hn::Set(d_bits, 0x7FU));
    const auto normal = hn::BitCast(d, hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(d_bits, Element::kRebias)));
    const auto subnormal = hn::Sub(hn::Add(normal, normal), hn::Set(d, 0x1p-6F));
    const auto sign = hn::ShiftLeft<24>(hn::Xor(code, magnitude));
    const auto number = hn::IfThenElse(hn::Lt(normal, hn::Set(d, 0x1p-6F)), subnormal, normal);
    const auto value = hn::BitCast(d, hn::Or(hn::BitCast(d_bits, number), sign));
    const auto is_nan = hn::Eq(magnitude, hn::Set(d_bits, Element::kNan));
    return hn::IfThenElse(hn::RebindMask(d, is_nan), hn::BitCast(d, hn::Set(d_bits, codec::kQuietNanBits)), value);
  }

 private:
  template <class D>
  static HWY_INLINE hn::Mask<hn::RebindToUnsigned<D>> is_subnormal(D d, hn::Vec<D> y) {
    return hn::RebindMask(hn::RebindToUnsigned<D>(), hn::Lt(hn::Abs(y), hn::Set(d, 0x1p-6F)));
  }

  // Subnormals come with bits of the constant that was added to them, all above the low byte.
  template <class D>
  static HWY_INLINE BitsOf<D> with_sign_of(D, hn::Vec<D> y, BitsOf<D> code) {
    const hn::RebindToUnsigned<D> d_bits;
    const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(d_bits, y)), hn::Set(d_bits, 0x80U));
    return hn::Or(code, sign);
  }
};

// Lanes of an Element of formats without blocks: the type that float_lanes-inl.h reads and writes it as, and stochastic
// rounding of finite numbers to codes.
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
    const auto small = hn::Mul(hn::Min(magnitude, least_normal), hn::Set(d, 0x1p37F));
    const auto subnormal = hn::BitCast(d_bits, hn::ConvertTo(hn::RebindToSigned<D>(), small));
    const auto normal = hn::Sub(hn::BitCast(d_bits, magnitude), hn::Set(d_bits, Element::kRebias));
    const auto is_subnormal = hn::RebindMask(d_bits, hn::Lt(magnitude, least_normal));
    const auto fixed = hn::IfThenElse(is_subnormal, subnormal, normal);
    const auto code = hn::ShiftRight<13>(hn::Add(fixed, hn::ShiftRight<19>(random)));
    const auto sign = hn::And(hn::ShiftRight<16>(hn::BitCast(d_bits, x)), hn::Set(d_bits, 0x8000U));
    store_low_halves(d, hn::Or(sign, hn::Min(code, hn::Set(d_bits, Element::kInf))), out);
  }
};

// Nothing to round.
template <>
struct NumberLanes<codec::wire::Binary32> {
  using Number = float;

  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> x, hn::Vec<hn::RebindToUnsigned<D>>, uint32_t* out) {
    hn::StoreU(x, d, reinterpret_cast<float*>(out));
  }
};

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // NARROWCAST_OPS_CPU_WIRE_ELEMENT_LANES_INL_H_
