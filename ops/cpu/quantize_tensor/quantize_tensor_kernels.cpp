#include "ops/cpu/quantize_tensor/quantize_tensor_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/quantize_tensor/quantize_tensor_kernels.cpp"
// The next include compiles this file once per instruction set.
#include <hwy/foreach_target.h>
// Keep the others below it.
#include <hwy/highway.h>

#include "ops/codec/quantize_tensor.h"
#include "ops/cpu/lanes/float_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {

// codec::encode_fp16 with the limit rounded to T, as PyTorch's clamp rounds it. In bfloat16 the limit is 65536, which
// is Inf in binary16.
template <class T>
struct Fp16Encoder {
  const float limit = static_cast<float>(static_cast<T>(codec::kFp16Max));

  template <class D>
  HWY_INLINE void store(D d, hn::Vec<D> value, uint16_t* codes) const {
    const auto most = hn::Set(d, limit);
    const auto least = hn::Neg(most);
    const auto not_above = hn::IfThenElse(hn::Gt(value, most), most, value);  // NaN stays.
    const auto clamped = hn::IfThenElse(hn::Lt(not_above, least), least, not_above);
    store_floats(d, clamped, reinterpret_cast<c10::Half*>(codes));
  }
  uint16_t encode(float value) const { return codec::encode_fp16(value, limit); }
};

// codec::encode_bfp16.
struct Bfp16Encoder {
  template <class D>
  HWY_INLINE void store(D d, hn::Vec<D> value, uint16_t* codes) const {
    const hn::RebindToUnsigned<D> d_bits;
    const auto bits = hn::BitCast(d_bits, value);
    const auto number = hn::RebindMask(d_bits, hn::Eq(value, value));
    const auto rounded = hn::Add(bits, hn::Set(d_bits, 0x8000U));
    const auto quiet = hn::Or(bits, hn::Set(d_bits, 0x00400000U));
    store_low_halves(d, hn::ShiftRight<16>(hn::IfThenElse(number, rounded, quiet)), codes);
  }
  uint16_t encode(float value) const { return codec::encode_bfp16(value); }
};

template <class T, class Encoder>
void encode(EncodeSpan<T> span, Encoder encoder) {
  const FloatLanes<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= span.n; i += lanes) {
    encoder.store(d, load_floats(d, span.x + i), span.codes + i);
  }
  for (; i < span.n; ++i) {
    span.codes[i] = encoder.encode(static_cast<float>(span.x[i]));
  }
}

template <class T>
void encode_fp16(EncodeSpan<T> span) {
  encode(span, Fp16Encoder<T>());
}

template <class T>
void encode_bfp16(EncodeSpan<T> span) {
  encode(span, Bfp16Encoder());
}

struct Fp16Decoder {
  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, const uint16_t* codes) const {
    return load_floats(d, reinterpret_cast<const c10::Half*>(codes));
  }
  float decode(uint16_t code) const { return codec::decode_fp16(code); }
};

struct Bfp16Decoder {
  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, const uint16_t* codes) const {
    return load_floats(d, reinterpret_cast<const c10::BFloat16*>(codes));
  }
  float decode(uint16_t code) const { return codec::decode_bfp16(code); }
};

template <class Decoder>
void decode(DecodeSpan span, Decoder decoder) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= span.n; i += lanes) {
    hn::StoreU(decoder.load(d, span.codes + i), d, span.out + i);
  }
  for (; i < span.n; ++i) {
    span.out[i] = decoder.decode(span.codes[i]);
  }
}

// The values of another decoder divided by quant_loss.
template <class Decoder>
struct DividedBy {
  const float quant_loss;
  const Decoder decoder = {};

  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, const uint16_t* codes) const {
    return hn::Div(decoder.load(d, codes), hn::Set(d, quant_loss));
  }
  float decode(uint16_t code) const { return decoder.decode(code) / quant_loss; }
};

void decode_fp16(DecodeSpan span) { decode(span, Fp16Decoder()); }
void decode_bfp16(DecodeSpan span) { decode(span, Bfp16Decoder()); }
void decode_fp16_divided(DecodeSpan span, float quant_loss) { decode(span, DividedBy<Fp16Decoder>{quant_loss}); }
void decode_bfp16_divided(DecodeSpan span, float quant_loss) { decode(span, DividedBy<Bfp16Decoder>{quant_loss}); }

template <class T>
inline constexpr EncodeKernels<T> kEncodeKernels{&encode_fp16<T>, &encode_bfp16<T>};

const EncodeKernelTable& encode_table() {
  static constexpr EncodeKernelTable kTable{kEncodeKernels<float>, kEncodeKernels<double>,
                                            kEncodeKernels<c10::BFloat16>, kEncodeKernels<c10::Half>};
  return kTable;
}

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrowcast::cpu {
namespace {

HWY_EXPORT(encode_table);
HWY_EXPORT(decode_fp16);
HWY_EXPORT(decode_bfp16);
HWY_EXPORT(decode_fp16_divided);
HWY_EXPORT(decode_bfp16_divided);

template <class T>
const EncodeKernels<T>& encode_kernels() {
  return std::get<EncodeKernels<T>>(HWY_DYNAMIC_DISPATCH(encode_table)());
}

}  // namespace

template <class T>
void encode_fp16(EncodeSpan<T> span) {
  encode_kernels<T>().fp16(span);
}

template <class T>
void encode_bfp16(EncodeSpan<T> span) {
  encode_kernels<T>().bfp16(span);
}

void decode_fp16(DecodeSpan span) { HWY_DYNAMIC_DISPATCH(decode_fp16)(span); }
void decode_bfp16(DecodeSpan span) { HWY_DYNAMIC_DISPATCH(decode_bfp16)(span); }
void decode_fp16(DecodeSpan span, float quant_loss) { HWY_DYNAMIC_DISPATCH(decode_fp16_divided)(span, quant_loss); }
void decode_bfp16(DecodeSpan span, float quant_loss) { HWY_DYNAMIC_DISPATCH(decode_bfp16_divided)(span, quant_loss); }

#define NARROWCAST_INSTANTIATE(T)              \
  template void encode_fp16<T>(EncodeSpan<T>); \
  template void encode_bfp16<T>(EncodeSpan<T>);

NARROWCAST_INSTANTIATE(float)
NARROWCAST_INSTANTIATE(double)
NARROWCAST_INSTANTIATE(c10::BFloat16)
NARROWCAST_INSTANTIATE(c10::Half)

}  // namespace narrowcast::cpu
#endif  // HWY_ONCE
