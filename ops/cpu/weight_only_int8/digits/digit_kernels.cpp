#include "ops/cpu/weight_only_int8/digits/digit_kernels.h"

// VNNI is in AVX3_DL; all other instruction sets share the answer that there is none.
#define HWY_WANT_AVX3_DL
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX2 | HWY_AVX3)

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/weight_only_int8/digits/digit_kernels.cpp"
// The next include compiles this file once per instruction set.
#include <hwy/foreach_target.h>
// Keep the others below it.
#include <hwy/highway.h>

#include "ops/cpu/weight_only_int8/digits/digit_multiply-inl.h"
#include "ops/cpu/weight_only_int8/digits/digit_multiply_few-inl.h"
#include "ops/cpu/weight_only_int8/digits/digit_split-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3_DL

void multiply(const DigitRows& x, const Int8Layer& layer, Range blocks, float* const* y) {
  const bool few = x.rows * x.planes <= kPanelDigitRows;
  few ? multiply_few(x, layer, blocks, y) : multiply_many(x, layer, blocks, y);
}

const DigitKernels* find_digit_kernels() {
  static constexpr DigitKernels kKernels{&fits, &split, &multiply};
  return &kKernels;
}

#else

const DigitKernels* find_digit_kernels() { return nullptr; }

#endif  // HWY_TARGET == HWY_AVX3_DL

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrowcast::cpu {
namespace {

HWY_EXPORT(find_digit_kernels);

}  // namespace

const DigitKernels* digit_kernels() { return HWY_DYNAMIC_DISPATCH(find_digit_kernels)(); }

}  // namespace narrowcast::cpu
#endif  // HWY_ONCE
