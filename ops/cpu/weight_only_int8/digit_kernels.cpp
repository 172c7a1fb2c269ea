#include "ops/cpu/weight_only_int8/linear_kernels.h"

// VNNI is in AVX3_DL; all other instruction sets share the answer that there is none.
#define HWY_WANT_AVX3_DL
#undef HWY_DISABLED_TARGETS  // The build may leave out some by itself.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX2 | HWY_AVX3)

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/weight_only_int8/digit_kernels.cpp"
// The next include compiles this file once per instruction set.
#include <hwy/foreach_target.h>
// Keep the others below it.
#include <hwy/highway.h>

#include "ops/cpu/weight_only_int8/digit_multiply-inl.h"
#include "ops/cpu/weight_only_int8/digit_multiply_few-inl.h"
#include "ops/cpu/weight_only_int8/digit_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3_DL

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
