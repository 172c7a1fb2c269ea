// Codes packed for many digit rows, for the instruction set being compiled.
// Included by digit_multiply-inl.h.
#if defined(NARROWCAST_DIGIT_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWCAST_DIGIT_PACK_INL_H_
#undef NARROWCAST_DIGIT_PACK_INL_H_
#else
#define NARROWCAST_DIGIT_PACK_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "ops/cpu/weight_only_int8/digit_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3_DL

// A block's codes are packed slice by slice: 64 codes of each output side by side, four of each output in turn, so that
// one vector holds the codes of 16 outputs that meet the same four digits.
constexpr int64_t kSlice = 1024;  // inputs whose packed codes stay in the first-level cache
constexpr int64_t kPackedInputs = 4;
constexpr int64_t kVectorOutputs = 16;
constexpr int kBlockVectors = kBlockOutputs / kVectorOutputs;

// A slice of inputs: k = begin..begin + size, a whole number of steps.
struct Slice {
  int64_t begin;
  int64_t size;
};

// 64 codes, or those that the mask lets through and zeros, with 128 added.
HWY_INLINE __m512i load_unsigned_codes(const int8_t* codes, __mmask64 mask) {
  return _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, codes), _mm512_set1_epi8(static_cast<char>(0x80)));
}

// Four vectors' parts of 128 bits as a matrix, transposed; vector i of the result goes to out[4 * i].
HWY_INLINE void transpose_parts(__m512i v0, __m512i v1, __m512i v2, __m512i v3, __m512i* out) {
  const __m512i low01 = _mm512_shuffle_i32x4(v0, v1, 0x44);
  const __m512i high01 = _mm512_shuffle_i32x4(v0, v1, 0xEE);
  const __m512i low23 = _mm512_shuffle_i32x4(v2, v3, 0x44);
  const __m512i high23 = _mm512_shuffle_i32x4(v2, v3, 0xEE);
  out[0] = _mm512_shuffle_i32x4(low01, low23, 0x88);
  out[4] = _mm512_shuffle_i32x4(low01, low23, 0xDD);
  out[8] = _mm512_shuffle_i32x4(high01, high23, 0x88);
  out[12] = _mm512_shuffle_i32x4(high01, high23, 0xDD);
}

// Sixteen vectors of 16 int32 as a matrix, transposed in place.
HWY_INLINE void transpose(__m512i (&v)[kVectorOutputs]) {
  __m512i quads[kVectorOutputs];  // [4 j + c]: of rows 4 j..4 j + 3 column c of each part of 128 bits
  HWY_UNROLL(4)
  for (int j = 0; j < kVectorOutputs; j += 4) {
    const __m512i low01 = _mm512_unpacklo_epi32(v[j], v[j + 1]);
    const __m512i high01 = _mm512_unpackhi_epi32(v[j], v[j + 1]);
    const __m512i low23 = _mm512_unpacklo_epi32(v[j + 2], v[j + 3]);
    const __m512i high23 = _mm512_unpackhi_epi32(v[j + 2], v[j + 3]);
    quads[j] = _mm512_unpacklo_epi64(low01, low23);
    quads[j + 1] = _mm512_unpackhi_epi64(low01, low23);
    quads[j + 2] = _mm512_unpacklo_epi64(high01, high23);
    quads[j + 3] = _mm512_unpackhi_epi64(high01, high23);
  }
  HWY_UNROLL(4)
  for (int c = 0; c < 4; ++c) transpose_parts(quads[c], quads[4 + c], quads[8 + c], quads[12 + c], v + c);
}

// The codes of 16 outputs and 64 inputs from k on, those past the inputs' end as any: their digits are zeros. Outputs
// past the layer's end are copies of its last one.
inline void pack_step(const Int8Layer& layer, int64_t first, int64_t k, int8_t* packed) {
  const __mmask64 mask = ~__mmask64{0} >> (kDigitStep - std::min(layer.inputs - k, kDigitStep));
  __m512i v[kVectorOutputs];
  HWY_UNROLL(16)
  for (int64_t o = 0; o < kVectorOutputs; ++o) {
    v[o] = load_unsigned_codes(layer.codes + std::min(first + o, layer.outputs - 1) * layer.inputs + k, mask);
  }
  transpose(v);
  HWY_UNROLL(16)
  for (int64_t i = 0; i < kVectorOutputs; ++i) _mm512_store_si512(packed + i * kBlockOutputs * kPackedInputs, v[i]);
}

inline void pack_slice(const Int8Layer& layer, int64_t first, Slice slice, int8_t* packed) {
  for (int64_t k = 0; k < slice.size; k += kDigitStep) {
    for (int64_t o = 0; o < kBlockOutputs; o += kVectorOutputs) {
      pack_step(layer, first + o, slice.begin + k, packed + k * kBlockOutputs + o * kPackedInputs);
    }
  }
}

// Has the processor fetch a slice of a block's codes, some at a time, while another is multiplied.
class CodeFetcher {
 public:
  CodeFetcher(const Int8Layer& layer, int64_t first, Slice slice)
      : inputs_(layer.inputs),
        size_(slice.size),
        next_(layer.codes + first * layer.inputs + slice.begin),
        outputs_(std::min(kBlockOutputs, layer.outputs - first)) {}

  void fetch(int64_t lines) {
    for (int64_t i = 0; i < lines && outputs_ > 0; ++i) {
      _mm_prefetch(next_ + offset_, _MM_HINT_T1);
      offset_ += kDigitStep;
      if (offset_ >= size_) {
        offset_ = 0;
        next_ += inputs_;
        --outputs_;
      }
    }
  }

 private:
  int64_t inputs_;
  int64_t size_;
  const int8_t* next_;
  int64_t outputs_;
  int64_t offset_ = 0;
};

#endif  // HWY_TARGET == HWY_AVX3_DL

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NARROWCAST_DIGIT_PACK_INL_H_
