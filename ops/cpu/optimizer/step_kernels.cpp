#include "ops/cpu/optimizer/step_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/optimizer/step_kernels.cpp"
// The next include compiles this file once per instruction set.
#include <hwy/foreach_target.h>
// Keep the others below it.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
HWY_INLINE hn::Vec<D> times(D d, float factor, hn::Vec<D> value) {
  return hn::Mul(hn::Set(d, factor), value);
}

// Keeps NaN.
template <class D>
HWY_INLINE hn::Vec<D> flush(D d, hn::Vec<D> value) {
  return hn::IfThenZeroElse(hn::Lt(hn::Abs(value), hn::Set(d, 0x1p-126F)), value);
}

// Calls step(tag, i) for all elements: the tag has the lanes of a vector, and at the end one lane.
template <class Step>
HWY_INLINE void for_all_elements(int64_t n, const Step& step) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> d_one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) step(d, i);
  for (; i < n; ++i) step(d_one, i);
}

// Factors are passed by value: stores to the arrays could change factors behind a reference.
template <class D>
HWY_INLINE void step_elements(D d, AdamWFactors f, AdamWArrays a, int64_t i) {
  const auto x = hn::LoadU(d, a.parameters + i);
  const auto g = times(d, f.gradient_scale, hn::LoadU(d, a.gradients + i));
  const auto m = flush(d, hn::Add(times(d, f.beta1, hn::LoadU(d, a.averages + i)), times(d, f.rest_of_beta1, g)));
  const auto v =
      flush(d, hn::Add(times(d, f.beta2, hn::LoadU(d, a.squares + i)), hn::Mul(times(d, f.rest_of_beta2, g), g)));
  const auto direction = hn::Div(m, hn::Add(hn::Sqrt(v), hn::Set(d, f.epsilon)));
  hn::StoreU(m, d, a.averages + i);
  hn::StoreU(v, d, a.squares + i);
  hn::StoreU(hn::Sub(x, hn::Add(times(d, f.rate, direction), times(d, f.decay, x))), d, a.parameters + i);
}

enum class Momentum { kNone, kPlain, kNesterov };

template <Momentum kMomentum, class D>
HWY_INLINE void step_elements(D d, SgdFactors f, SgdArrays a, int64_t i) {
  const auto x = hn::LoadU(d, a.parameters + i);
  auto direction = hn::Add(times(d, f.gradient_scale, hn::LoadU(d, a.gradients + i)), times(d, f.decay, x));
  if constexpr (kMomentum != Momentum::kNone) {
    const auto b = flush(d, hn::Add(times(d, f.momentum, hn::LoadU(d, a.momenta + i)), times(d, f.share, direction)));
    hn::StoreU(b, d, a.momenta + i);
    direction = kMomentum == Momentum::kPlain ? b : hn::Add(direction, times(d, f.momentum, b));
  }
  hn::StoreU(hn::Sub(x, times(d, f.rate, direction)), d, a.parameters + i);
}

void step_adamw_arrays(const AdamWFactors& factors, const AdamWArrays& arrays) {
  const AdamWFactors f = factors;
  const AdamWArrays a = arrays;
  for_all_elements(a.n, [&](auto d, int64_t i) { step_elements(d, f, a, i); });
}

template <Momentum kMomentum>
void step_sgd_with(const SgdFactors& factors, const SgdArrays& arrays) {
  const SgdFactors f = factors;
  const SgdArrays a = arrays;
  for_all_elements(a.n, [&](auto d, int64_t i) { step_elements<kMomentum>(d, f, a, i); });
}

void step_sgd_arrays(const SgdFactors& factors, const SgdArrays& arrays) {
  if (arrays.momenta == nullptr) {
    step_sgd_with<Momentum::kNone>(factors, arrays);
  } else if (factors.nesterov) {
    step_sgd_with<Momentum::kNesterov>(factors, arrays);
  } else {
    step_sgd_with<Momentum::kPlain>(factors, arrays);
  }
}

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrowcast::cpu {
namespace {

HWY_EXPORT(step_adamw_arrays);
HWY_EXPORT(step_sgd_arrays);

}  // namespace

void step_adamw(const AdamWFactors& factors, const AdamWArrays& arrays) {
  HWY_DYNAMIC_DISPATCH(step_adamw_arrays)(factors, arrays);
}

void step_sgd(const SgdFactors& factors, const SgdArrays& arrays) {
  HWY_DYNAMIC_DISPATCH(step_sgd_arrays)(factors, arrays);
}

}  // namespace narrowcast::cpu
#endif  // HWY_ONCE
