// Digits times codes, as digit_kernels.h says, for the instruction set being
// compiled. Included by digit_kernels.cpp, which includes Highway.
#if defined(NARROWCAST_DIGIT_MULTIPLY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWCAST_DIGIT_MULTIPLY_INL_H_
#undef NARROWCAST_DIGIT_MULTIPLY_INL_H_
#else
#define NARROWCAST_DIGIT_MULTIPLY_INL_H_
#endif

#include <hwy/aligned_allocator.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "ops/cpu/weight_only_int8/digit_kernels.h"
#include "ops/cpu/weight_only_int8/digit_pack-inl.h"
#include "ops/cpu/weight_only_int8/digit_store-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3_DL

// In assembly: with its intrinsic GCC 12 moves most of the 24 sums to memory and back, 2.5 times slower.
HWY_INLINE void add_products(__m512i& sums, __m512i unsigned_bytes, __m512i signed_bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(unsigned_bytes), "v"(signed_bytes));
}

// Four digits of one digit row in every lane.
HWY_INLINE __m512i broadcast_digits(const int8_t* digits) {
  int32_t four;
  std::memcpy(&four, digits, sizeof(four));
  return _mm512_set1_epi32(four);
}

// A tile's digits: of one panel, or of that and the next.
struct TileDigits {
  const int8_t* first;
  const int8_t* second;
};

// sums[d] += digit row d times four packed codes of each of the block's outputs; k is the place in a step.
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

// By digit rows, which are a multiple of 2 or of 3.
using MultiplyTile = void (*)(TileDigits, const int8_t*, int64_t, int32_t*);
constexpr MultiplyTile kMultiplyTile[kTileDigitRows + 1] = {
    nullptr,           nullptr, &multiply_tile<2>, &multiply_tile<3>, &multiply_tile<4>,  nullptr,
    &multiply_tile<6>, nullptr, &multiply_tile<8>, &multiply_tile<9>, &multiply_tile<10>, nullptr,
    &multiply_tile<12>};

// Adds a slice to all sums of a block, [digit row][kBlockOutputs].
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
