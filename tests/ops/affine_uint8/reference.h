// PyTorch's Python implementation, as ATen operators in the same order and on the tensors' device, and inputs that
// could make results differ.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>
#include "tests/support/sanitized.h"

namespace narrowcast::test {

// The sizes with which every kernel is tested.
inline const std::vector<int64_t> kSizes{0, 1, 7, 127, 128, 129, 255, 256, 257, 1000003};

// Sets the number of ATen's threads while it lives. The references use one thread: on a busy machine, waiting for
// another takes longer than the work.
class UseThreads {
 public:
  explicit UseThreads(int threads) : before_(at::get_num_threads()) { at::set_num_threads(threads); }
  ~UseThreads() { at::set_num_threads(before_); }
  UseThreads(const UseThreads&) = delete;
  UseThreads& operator=(const UseThreads&) = delete;

 private:
  int before_;
};

// torch.ao.quantization.MinMaxObserver()(x).calculate_qparams(): 0-dim float32 and int32.
inline std::pair<at::Tensor, at::Tensor> observe(const at::Tensor& x) {
  const auto options = x.options().dtype(at::kFloat);
  const at::Tensor zero = at::zeros({}, options);
  if (x.numel() == 0) {
    return {at::ones({}, options), at::zeros({}, options.dtype(at::kInt))};
  }
  const auto [min, max] = at::aminmax(x.to(at::kFloat));
  const at::Tensor min_neg = at::min(min, zero);
  const at::Tensor max_pos = at::max(max, zero);
  const at::Tensor scale = at::max((max_pos - min_neg) / 255.0, at::full({}, 0x1p-23, at::kFloat));
  const at::Tensor steps = at::round(min_neg / scale);
  // Converting NaN to an integer gives the least integer on x86, and the clamp then 0.
  const at::Tensor zero_point = at::clamp(at::rsub(at::nan_to_num(steps), 0), 0, 255).to(at::kInt);
  return {scale, zero_point};
}

// _quantize_per_tensor_backend of quantization_hooks.py.
inline at::Tensor quantize_backend(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point) {
  const at::Tensor y = at::round(x / scale) + zero_point;
  // The conversion of NaN is undefined in C++; the hardware's and this library's result is 0.
  return at::nan_to_num(at::clamp(y, 0, 255), 0.0).to(at::kByte);
}

// _dequantize_per_tensor_backend of quantization_hooks.py.
inline at::Tensor dequantize_backend(const at::Tensor& codes, const at::Tensor& scale, const at::Tensor& zero_point) {
  return scale * (codes.to(at::kFloat) - zero_point);
}

// Tensors of one dtype and size, named by their difficulty.
inline std::vector<std::pair<std::string, at::Tensor>> all_inputs(at::ScalarType dtype, int64_t size) {
  at::manual_seed(size + 1);
  const at::Tensor normal = at::randn({size}, at::kDouble);
  const at::Tensor powers = at::pow(10.0, at::rand({size}, at::kDouble) * 80 - 45);
  const at::Tensor bytes = at::randint(0, 256, {size * static_cast<int64_t>(at::elementSize(dtype))}, at::kByte);
  const at::Tensor patterns = size == 0 ? normal.to(dtype) : bytes.view(dtype);
  at::Tensor hostile = normal.to(dtype).clone();
  const std::vector<double> specials{-0.0, 0.0, 1e-40, -1e-40, 6e-8, -6e-8, 6.1e-5, 65504, -65520, 3e38};
  for (int64_t i = 0; i < size; i += 3) {
    hostile[i] = specials[static_cast<size_t>(i / 3) % specials.size()];
    i += i > 300 ? size / 7 : 0;
  }
  at::Tensor with_nan = normal.to(dtype).clone();
  at::Tensor with_inf = with_nan.clone();
  at::Tensor with_negative_inf = with_nan.clone();
  if (size > 0) {
    with_nan[size / 2] = std::numeric_limits<double>::quiet_NaN();
    with_inf[size - 1] = std::numeric_limits<double>::infinity();
    with_negative_inf[0] = -std::numeric_limits<double>::infinity();
  }
  if (size > 100000) {  // Only the inputs that behave differently with many elements.
    return {{"gradients", (normal * 1e-3).to(dtype)}, {"random_bits", patterns}, {"hostile", hostile}};
  }
  return {{"gradients", (normal * 1e-3).to(dtype)},
          {"positive", (normal.abs() + 2).to(dtype)},
          {"negative", (-normal.abs() - 2).to(dtype)},
          {"zeros", at::zeros({size}, dtype)},
          {"halves", (at::round(normal * 100) / 2).to(dtype)},
          {"all_magnitudes", (normal * powers).to(dtype)},
          {"random_bits", patterns},
          {"hostile", hostile},
          {"nan", with_nan},
          {"inf", with_inf},
          {"negative_inf", with_negative_inf}};
}

// The same inputs; under sanitizers only some of them, different ones at each call.
inline std::vector<std::pair<std::string, at::Tensor>> inputs(at::ScalarType dtype, int64_t size) {
  return some_of(all_inputs(dtype, size));
}

// Equal bits; any NaN equals any other NaN.
inline ::testing::AssertionResult same_bits(const at::Tensor& actual, const at::Tensor& expected) {
  if (actual.scalar_type() != expected.scalar_type() || actual.sizes() != expected.sizes()) {
    return ::testing::AssertionFailure() << actual.toString() << actual.sizes() << " is not " << expected.toString()
                                         << expected.sizes();
  }
  at::Tensor differs = actual.ne(expected);
  if (at::isFloatingType(actual.scalar_type())) {
    differs = differs.logical_or(actual.signbit().ne(expected.signbit()));
    differs = differs.logical_and(actual.isnan().logical_and(expected.isnan()).logical_not());
  }
  const at::Tensor where = differs.flatten().nonzero();
  if (where.size(0) == 0) {
    return ::testing::AssertionSuccess();
  }
  const int64_t first = where[0].item<int64_t>();
  return ::testing::AssertionFailure() << where.size(0) << " of " << actual.numel() << " differ, first at " << first
                                       << ": " << actual.flatten()[first].item<double>() << " instead of "
                                       << expected.flatten()[first].item<double>();
}

}  // namespace narrowcast::test
