#include "ops/cpu/weight_only_int8/row_kernels.h"

// Accumulators are arrays; vectors of unknown size cannot be array elements.
#undef HWY_DISABLED_TARGETS  // The build may disable some itself.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/weight_only_int8/row_kernels.cpp"
// The next include compiles this file once per instruction set.
#include <hwy/foreach_target.h>
// Keep the others below it.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "ops/cpu/lanes/float_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {

// Outputs that are summed together: enough chains of sums to hide their latency, but few enough for the registers.
constexpr int tile_outputs(int rows) { return rows <= 2 ? 8 : 4; }

// One vector of codes as float32.
template <class D>
HWY_INLINE hn::Vec<D> load_codes(D d, const int8_t* codes) {
  const hn::RebindToSigned<D> d_int;
  return hn::ConvertTo(d, hn::PromoteTo(d_int, hn::LoadU(hn::Rebind<int8_t, D>(), codes)));
}

// Prefetches the codes of the tile after this one. Has no effect beyond the layer's end.
template <int kOutputs>
HWY_INLINE void prefetch_next_tile(const int8_t* codes, int64_t inputs, int64_t k) {
  constexpr int64_t kCacheLine = 64;
  if (kOutputs > 1 && k % kCacheLine == 0) {
    HWY_UNROLL(8)
    for (int o = 0; o < kOutputs; ++o) {
      const auto next = reinterpret_cast<uintptr_t>(codes) + static_cast<uintptr_t>((o + kOutputs) * inputs + k);
      hwy::Prefetch(reinterpret_cast<const int8_t*>(next));
    }
  }
}

// Adds the terms that do not fill a vector.
template <int kRows, int kOutputs>
void add_last_terms(const Row<float>* rows, const int8_t* codes, Range terms, int64_t inputs,
                    float (&sums)[kRows][kOutputs]) {
  for (int r = 0; r < kRows; ++r) {
    for (int o = 0; o < kOutputs; ++o) {
      for (int64_t k = terms.begin; k < terms.end; ++k) {
        sums[r][o] += rows[r].x[k] * static_cast<float>(codes[o * inputs + k]);
      }
    }
  }
}

// sums[r][o] = sum over k of rows[r].x[k] * codes[o * inputs + k].
template <int kRows, int kOutputs>
void sum_tile(const Row<float>* rows, const int8_t* codes, int64_t inputs, float (&sums)[kRows][kOutputs]) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  hn::Vec<decltype(d)> partial[kRows][kOutputs];
  HWY_UNROLL(16)
  for (int i = 0; i < kRows * kOutputs; ++i) partial[i / kOutputs][i % kOutputs] = hn::Zero(d);
  int64_t k = 0;
  for (; k + lanes <= inputs; k += lanes) {
    prefetch_next_tile<kOutputs>(codes, inputs, k);
    hn::Vec<decltype(d)> weights[kOutputs];
    HWY_UNROLL(8)
    for (int o = 0; o < kOutputs; ++o) weights[o] = load_codes(d, codes + o * inputs + k);
    HWY_UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
      const auto x = hn::LoadU(d, rows[r].x + k);
      HWY_UNROLL(8)
      for (int o = 0; o < kOutputs; ++o) partial[r][o] = hn::MulAdd(x, weights[o], partial[r][o]);
    }
  }
  HWY_UNROLL(16)
  for (int i = 0; i < kRows * kOutputs; ++i) {
    sums[i / kOutputs][i % kOutputs] = hn::GetLane(hn::SumOfLanes(d, partial[i / kOutputs][i % kOutputs]));
  }
  add_last_terms<kRows, kOutputs>(rows, codes, {k, inputs}, inputs, sums);
}

template <int kRows, int kOutputs>
void multiply_tile(const Row<float>* rows, const Int8Layer& layer, int64_t first) {
  float sums[kRows][kOutputs];
  sum_tile<kRows, kOutputs>(rows, layer.codes + first * layer.inputs, layer.inputs, sums);
  for (int r = 0; r < kRows; ++r) {
    for (int o = 0; o < kOutputs; ++o) {
      const float y = sums[r][o] * layer.scales[first + o];
      rows[r].y[first + o] = layer.bias == nullptr ? y : y + layer.bias[first + o];
    }
  }
}

template <int kRows>
void multiply(const Row<float>* rows, const Int8Layer& layer, Range outputs) {
  constexpr int kTile = tile_outputs(kRows);
  int64_t o = outputs.begin;
  for (; o + kTile <= outputs.end; o += kTile) multiply_tile<kRows, kTile>(rows, layer, o);
  for (; o < outputs.end; ++o) multiply_tile<kRows, 1>(rows, layer, o);
}

void multiply_few_rows(const Row<float>* rows, int64_t count, const Int8Layer& layer, Range outputs) {
  switch (count) {
    case 1:
      return multiply<1>(rows, layer, outputs);
    case 2:
      return multiply<2>(rows, layer, outputs);
    case 3:
      return multiply<3>(rows, layer, outputs);
    default:
      return multiply<4>(rows, layer, outputs);
  }
}

void widen_to_floats(const int8_t* codes, int64_t n, float* out) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(load_codes(d, codes + i), d, out + i);
  for (; i < n; ++i) out[i] = codes[i];
}

// Widens whole vectors and returns the number of widened codes. The upper half of a float32 is a bfloat16, which has
// enough bits for a code.
#if HWY_TARGET == HWY_SCALAR
inline int64_t widen_vectors(const int8_t*, int64_t, uint16_t*) { return 0; }
#else
inline int64_t widen_vectors(const int8_t* codes, int64_t n, uint16_t* out) {
  const hn::ScalableTag<float> d;
  const hn::ScalableTag<uint16_t> d_out;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto low = hn::BitCast(d_out, load_codes(d, codes + i));
    const auto high = hn::BitCast(d_out, load_codes(d, codes + i + lanes));
    hn::StoreU(hn::ConcatOdd(d_out, high, low), d_out, out + i);
  }
  return i;
}
#endif

void widen_to_bfloat16(const int8_t* codes, int64_t n, uint16_t* out) {
  for (int64_t i = widen_vectors(codes, n, out); i < n; ++i) out[i] = c10::BFloat16(static_cast<float>(codes[i])).x;
}

template <class T>
void scale(const T* product, const Int8Layer& layer, Range outputs, T* y) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const float* const scales = layer.scales + outputs.begin;
  const float* const bias = layer.bias == nullptr ? nullptr : layer.bias + outputs.begin;
  const int64_t n = outputs.end - outputs.begin;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto offset = bias == nullptr ? hn::Zero(d) : hn::LoadU(d, bias + i);
    store_floats(d, hn::MulAdd(load_floats(d, product + i), hn::LoadU(d, scales + i), offset), y + i);
  }
  for (; i < n; ++i)
    y[i] = static_cast<T>(static_cast<float>(product[i]) * scales[i] + (bias == nullptr ? 0 : bias[i]));
}

void scale_floats(const float* product, const Int8Layer& layer, Range outputs, float* y) {
  scale(product, layer, outputs, y);
}

void scale_bfloat16(const c10::BFloat16* product, const Int8Layer& layer, Range outputs, c10::BFloat16* y) {
  scale(product, layer, outputs, y);
}

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrowcast::cpu {
namespace {

HWY_EXPORT(multiply_few_rows);
HWY_EXPORT(widen_to_floats);
HWY_EXPORT(widen_to_bfloat16);
HWY_EXPORT(scale_floats);
HWY_EXPORT(scale_bfloat16);

}  // namespace

void multiply_few_rows(const Row<float>* rows, int64_t count, const Int8Layer& layer, Range outputs) {
  HWY_DYNAMIC_DISPATCH(multiply_few_rows)(rows, count, layer, outputs);
}

void widen_codes(const int8_t* codes, int64_t n, float* out) { HWY_DYNAMIC_DISPATCH(widen_to_floats)(codes, n, out); }

void widen_codes(const int8_t* codes, int64_t n, c10::BFloat16* out) {
  HWY_DYNAMIC_DISPATCH(widen_to_bfloat16)(codes, n, reinterpret_cast<uint16_t*>(out));
}

void scale_outputs(const float* product, const Int8Layer& layer, Range outputs, float* y) {
  HWY_DYNAMIC_DISPATCH(scale_floats)(product, layer, outputs, y);
}

void scale_outputs(const c10::BFloat16* product, const Int8Layer& layer, Range outputs, c10::BFloat16* y) {
  HWY_DYNAMIC_DISPATCH(scale_bfloat16)(product, layer, outputs, y);
}

}  // namespace narrowcast::cpu
#endif  // HWY_ONCE
