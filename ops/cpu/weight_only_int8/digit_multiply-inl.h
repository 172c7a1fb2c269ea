// Products of digits and codes (digit_kernels.h) for many digit rows, for which codes are packed first. For the
// instruction set that is being compiled. Included by digit_kernels.cpp, which includes Highway.
#if defined(NARROWCAST_DIGIT_MULTIPLY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWCAST_DIGIT_MULTIPLY_INL_H_
#undef NARROWCAST_DIGIT_MULTIPLY_INL_H_
#else
#define NARROWCAST_DIGIT_MULTIPLY_INL_H_
#endif

#include <hwy/aligned_allocator.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ops/cpu/weight_only_int8/digit_kernels.h"
#include "ops/cpu/weight_only_int8/digit_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3_DL

// A block's codes are packed slice by slice. In a slice, 64 codes of each output are side by side, four of each output
// in turn, so that one vector holds the codes of 16 outputs that are multiplied by the same four digits.
constexpr int64_t kSlice = 1024;  // inputs whose packed codes stay in the first-level cache
constexpr int64_t kPackedInputs = 4;
constexpr int64_t kVectorOutputs = 16;
constexpr int kBlockVectors = kBlockOutputs / kVectorOutputs;

// A slice of inputs, begin <= k < begin + size; a whole number of steps.
struct Slice {
  int64_t begin;
  int64_t size;
};

// 64 codes with 128 added. Codes that the mask excludes are 0 before the addition.
HWY_INLINE __m512i load_unsigned_codes(const int8_t* codes, __mmask64 mask) {
  return _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, codes), _mm512_set1_epi8(static_cast<char>(0x80)));
}

// Transposes a matrix of four vectors' parts of 128 bits; vector i of the result is written to out[4 * i].
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

// Transposes a matrix of sixteen vectors of 16 int32 in place.
HWY_INLINE void transpose(__m512i (&v)[kVectorOutputs]) {
  __m512i quads[kVectorOutputs];  // [4 j + c]: column c of each part of 128 bits, of rows 4 j..4 j + 3
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

// Packs the codes of 16 outputs and 64 inputs from k on. Codes beyond the inputs' end are arbitrary, since their digits
// are zeros. Outputs beyond the layer's end are copies of its last one.
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

// Prefetches a slice of a block's codes in portions, while another slice is multiplied.
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

// Written in assembly: with the intrinsic, GCC 12 moves most of the 24 sums to memory and back, which is 2.5 times
// slower.
HWY_INLINE void add_products(__m512i& sums, __m512i unsigned_bytes, __m512i signed_bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(unsigned_bytes), "v"(signed_bytes));
}

// Four digits of one digit row in every lane.
HWY_INLINE __m512i broadcast_digits(const int8_t* digits) {
  int32_t four;
  std::memcpy(&four, digits, sizeof(four));
  return _mm512_set1_epi32(four);
}

// A tile's digits, from one panel or from two consecutive ones.
struct TileDigits {
  const int8_t* first;
  const int8_t* second;
};

// sums[d] += digit row d times four packed codes of each of the block's outputs; k is the offset in a step.
template <int kDigitRows>
HWY_INLINE void add_packed(TileDigits digits, int64_t k, const int8_t* packed,
                           __m512i (&sums)[kDigitRows][kBlockVectors]) {
  const __m512i codes[kBlockVectors] = {_mm512_load_si512(packed), _mm512_load_si512(packed + sizeof(__m512i))};
  HWY_UNROLL(12)
  for (int d = 0; d < kDigitRows; ++d) {
    const int8_t* const row =
        d < kPanelDigitRows ? digits.first + d * kDigitStep : digits.second + (d - kPanelDigitRows) * kDigitStep;
    const __m512i four = broadcast_digits(row + k);
    HWY_UNROLL(2)
    for (int v = 0; v < kBlockVectors; ++v) add_products(sums[d][v], codes[v], four);
  }
}

// sums[d * kBlockOutputs + o] += digit row d of a tile times output o of a block, over `size` inputs.
template <int kDigitRows>
void multiply_tile(TileDigits digits, const int8_t* packed, int64_t size, int32_t* sums) {
  constexpr int64_t kFirst = kDigitRows < kPanelDigitRows ? kDigitRows : kPanelDigitRows;
  __m512i partial[kDigitRows][kBlockVectors];
  HWY_UNROLL(24)
  for (int i = 0; i < kDigitRows * kBlockVectors; ++i) {
    partial[i / kBlockVectors][i % kBlockVectors] = _mm512_load_si512(sums + i * kVectorOutputs);
  }
  for (int64_t step = 0; step < size; step += kDigitStep) {
    const TileDigits of_step{digits.first + step * kFirst, digits.second + step * (kDigitRows - kFirst)};
    for (int64_t k = 0; k < kDigitStep; k += kPackedInputs) {
      add_packed<kDigitRows>(of_step, k, packed, partial);
      packed += kPackedInputs * kBlockOutputs;
    }
  }
  HWY_UNROLL(24)
  for (int i = 0; i < kDigitRows * kBlockVectors; ++i) {
    _mm512_store_si512(sums + i * kVectorOutputs, partial[i / kBlockVectors][i % kBlockVectors]);
  }
}

constexpr int64_t kTileDigitRows = 2 * kPanelDigitRows;

// Indexed by the number of digit rows, which is a multiple of 2 or of 3.
using MultiplyTile = void (*)(TileDigits, const int8_t*, int64_t, int32_t*);
constexpr MultiplyTile kMultiplyTile[kTileDigitRows + 1] = {
    nullptr,           nullptr, &multiply_tile<2>, &multiply_tile<3>, &multiply_tile<4>,  nullptr,
    &multiply_tile<6>, nullptr, &multiply_tile<8>, &multiply_tile<9>, &multiply_tile<10>, nullptr,
    &multiply_tile<12>};

// Adds a slice's products to all sums of a block, [digit row][kBlockOutputs].
inline void multiply_slice(const DigitRows& x, const int8_t* packed, Slice slice, CodeFetcher next, int32_t* sums) {
  const int64_t digit_rows = x.rows * x.planes;
  const int64_t tiles = (digit_rows + kTileDigitRows - 1) / kTileDigitRows;
  const int64_t lines = (slice.size / kDigitStep * kBlockOutputs + tiles - 1) / tiles;
  for (int64_t first = 0; first < digit_rows; first += kTileDigitRows) {
    next.fetch(lines);
    const int64_t left = std::min(kTileDigitRows, digit_rows - first);
    const int64_t in_first = std::min(kPanelDigitRows, left);
    const int8_t* const panel = x.digits + first * x.padded;
    const int8_t* const next_panel = left == in_first ? panel : panel + kPanelDigitRows * x.padded;
    const TileDigits digits{panel + slice.begin * in_first, next_panel + slice.begin * (left - in_first)};
    kMultiplyTile[left](digits, packed, slice.size, sums + first * kBlockOutputs);
  }
}

// The slice of the inputs that begins at `begin`.
inline Slice slice_at(int64_t begin, const DigitRows& x) { return {begin, std::min(kSlice, x.padded - begin)}; }

// DigitKernels::multiply for any number of rows.
template <class T>
void multiply_many(const DigitRows& x, const Int8Layer& layer, Range blocks, T* const* y) {
  const auto size = static_cast<size_t>(x.rows * x.planes * kBlockOutputs);
  const auto packed = hwy::AllocateAligned<int8_t>(static_cast<size_t>(kBlockOutputs * kSlice));
  const auto sums = hwy::AllocateAligned<int32_t>(size);
  for (int64_t first = blocks.begin * kBlockOutputs; first < blocks.end * kBlockOutputs; first += kBlockOutputs) {
    std::memset(sums.get(), 0, size * sizeof(int32_t));
    for (int64_t begin = 0; begin < x.padded; begin += kSlice) {
      const Slice slice = slice_at(begin, x);
      const bool is_last = begin + kSlice >= x.padded;
      const CodeFetcher next = is_last ? CodeFetcher(layer, first + kBlockOutputs, slice_at(0, x))
                                       : CodeFetcher(layer, first, slice_at(begin + kSlice, x));
      pack_slice(layer, first, slice, packed.get());
      multiply_slice(x, packed.get(), slice, next, sums.get());
    }
    store_block(x, layer, first, sums.get(), y);
  }
}

#endif  // HWY_TARGET == HWY_AVX3_DL

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NARROWCAST_DIGIT_MULTIPLY_INL_H_
