#include "ops/cpu/weight_only_int8/digit_kernels.h"

// AVX3_DL has VNNI; all other instruction sets share the code that returns null.
#define HWY_WANT_AVX3_DL
#undef HWY_DISABLED_TARGETS  // The build may disable some itself.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX2 | HWY_AVX3)

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/weight_only_int8/digit_kernels.cpp"
// The next include compiles this file once per instruction set.
#include <hwy/foreach_target.h>
// Keep the others below it.
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "ops/cpu/weight_only_int8/digit_multiply-inl.h"
#include "ops/cpu/weight_only_int8/digit_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3_DL

// Products of the digits of few rows and codes. Each code is multiplied by so few digits that packing it first, as in
// digit_multiply-inl.h, would take longer than the products.

constexpr int kTileOutputs = 4;

// The sum of each vector's lanes.
HWY_INLINE __m128i sums_of_lanes(const __m512i (&v)[kTileOutputs]) {
  const __m512i low = _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
  const __m512i high = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
  const __m512i quarters = _mm512_add_epi32(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
  const __m256i halves = _mm256_add_epi32(_mm512_castsi512_si256(quarters), _mm512_extracti64x4_epi64(quarters, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
}

// The distance by which codes are prefetched: the processor itself does not prefetch beyond a page.
constexpr int64_t kPrefetchBytes = 8192;

// sums[d] += digit row d times the 64 codes of the inputs from k on.
template <int kDigitRows>
HWY_INLINE void add_step(const int8_t* digits, const int8_t* codes, int64_t k, __mmask64 mask,
                         __m512i (&sums)[kDigitRows]) {
  const __m512i step = load_unsigned_codes(codes + k, mask);
  HWY_UNROLL(6)
  for (int d = 0; d < kDigitRows; ++d) {
    add_products(sums[d], step, _mm512_load_si512(digits + k * kDigitRows + d * kDigitStep));
  }
}

// sums[d] = digit row d times the codes of one output. Processing one output after the other reads the codes in memory
// order, which is faster than several outputs side by side.
template <int kDigitRows>
HWY_INLINE void multiply_output(const int8_t* digits, const int8_t* codes, int64_t inputs,
                                __m512i (&sums)[kDigitRows]) {
  __m512i odd[kDigitRows];  // Two chains of sums per digit row hide their latency.
  HWY_UNROLL(6)
  for (int d = 0; d < kDigitRows; ++d) sums[d] = odd[d] = _mm512_setzero_si512();
  int64_t k = 0;
  for (; k + 2 * kDigitStep <= inputs; k += 2 * kDigitStep) {
    const auto ahead = reinterpret_cast<uintptr_t>(codes) + static_cast<uintptr_t>(k + kPrefetchBytes);
    _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(ahead + kDigitStep), _MM_HINT_T0);
    add_step<kDigitRows>(digits, codes, k, ~__mmask64{0}, sums);
    add_step<kDigitRows>(digits, codes, k + kDigitStep, ~__mmask64{0}, odd);
  }
  for (; k < inputs; k += kDigitStep) {
    const int64_t left = std::min(inputs - k, kDigitStep);
    add_step<kDigitRows>(digits, codes, k, ~__mmask64{0} >> (kDigitStep - left), sums);
  }
  HWY_UNROLL(6)
  for (int d = 0; d < kDigitRows; ++d) sums[d] = _mm512_add_epi32(sums[d], odd[d]);
}

// sums[d * kBlockOutputs + o] = digit row d of a panel of kDigitRows times output o of a tile. Beyond the layer's end,
// its last output is used instead.
template <int kDigitRows>
void multiply_codes(const int8_t* digits, const Int8Layer& layer, int64_t first, int32_t* sums) {
  __m512i partial[kDigitRows][kTileOutputs];
  HWY_UNROLL(4)
  for (int o = 0; o < kTileOutputs; ++o) {
    const int64_t output = std::min(first + o, layer.outputs - 1);
    __m512i of_output[kDigitRows];
    multiply_output<kDigitRows>(digits, layer.codes + output * layer.inputs, layer.inputs, of_output);
    HWY_UNROLL(6)
    for (int d = 0; d < kDigitRows; ++d) partial[d][o] = of_output[d];
  }
  HWY_UNROLL(6)
  for (int d = 0; d < kDigitRows; ++d) {
    _mm_store_si128(reinterpret_cast<__m128i*>(sums + d * kBlockOutputs), sums_of_lanes(partial[d]));
  }
}

using MultiplyCodes = void (*)(const int8_t*, const Int8Layer&, int64_t, int32_t*);
constexpr MultiplyCodes kMultiplyCodes[kPanelDigitRows + 1] = {nullptr,
                                                               &multiply_codes<1>,
                                                               &multiply_codes<2>,
                                                               &multiply_codes<3>,
                                                               &multiply_codes<4>,
                                                               &multiply_codes<5>,
                                                               &multiply_codes<6>};

// With more digit rows, packing is faster.
constexpr int64_t kMostFewDigitRows = 9;

// DigitKernels::multiply for at most kMostFewDigitRows digit rows. For all panels except the first, a tile's codes are
// in the first-level cache.
template <class T>
void multiply_few(const DigitRows& x, const Int8Layer& layer, Range blocks, T* const* y) {
  HWY_ALIGN int32_t sums[kMostFewDigitRows * kBlockOutputs];
  const int64_t digit_rows = x.rows * x.planes;
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    for (int64_t o = 0; o < kBlockOutputs; o += kTileOutputs) {
      for (int64_t first = 0; first < digit_rows; first += kPanelDigitRows) {
        const int64_t left = std::min(kPanelDigitRows, digit_rows - first);
        kMultiplyCodes[left](x.digits + first * x.padded, layer, block * kBlockOutputs + o,
                             sums + first * kBlockOutputs + o);
      }
    }
    store_block(x, layer, block * kBlockOutputs, sums, y);
  }
}

template <class T>
void multiply(const DigitRows& x, const Int8Layer& layer, Range blocks, T* const* y) {
  const bool few = x.rows * x.planes <= kMostFewDigitRows;
  few ? multiply_few(x, layer, blocks, y) : multiply_many(x, layer, blocks, y);
}

template <class T>
const DigitKernels<T>* find_digit_kernels() {
  static constexpr DigitKernels<T> kKernels{&planes_for, &split, &multiply<T>};
  return &kKernels;
}

#else

template <class T>
const DigitKernels<T>* find_digit_kernels() {
  return nullptr;
}

#endif  // HWY_TARGET == HWY_AVX3_DL

const DigitKernels<float>* find_float_kernels() { return find_digit_kernels<float>(); }
const DigitKernels<c10::BFloat16>* find_bfloat16_kernels() { return find_digit_kernels<c10::BFloat16>(); }

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrowcast::cpu {
namespace {

HWY_EXPORT(find_float_kernels);
HWY_EXPORT(find_bfloat16_kernels);

}  // namespace

template <>
const DigitKernels<float>* digit_kernels() {
  return HWY_DYNAMIC_DISPATCH(find_float_kernels)();
}

template <>
const DigitKernels<c10::BFloat16>* digit_kernels() {
  return HWY_DYNAMIC_DISPATCH(find_bfloat16_kernels)();
}

}  // namespace narrowcast::cpu
#endif  // HWY_ONCE
