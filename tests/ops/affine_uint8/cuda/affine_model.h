// A model of PyTorch's reference hooks on CUDA, from ATen's operators on the CPU, in the order and with the rounding of
// PyTorch's CUDA kernels. Those multiply by the reciprocal of a number instead of dividing, and round the scale to x's
// dtype before x is divided by it.
#pragma once

#include <ATen/ATen.h>

#include <utility>

#include "tests/ops/affine_uint8/reference.h"

namespace narrowcast::test {

// MinMaxObserver's scale, float32, and zero point, int32, of x.
inline std::pair<at::Tensor, at::Tensor> qparams_model(const at::Tensor& x) {
  const auto [least, greatest] = at::aminmax(x.to(at::kFloat));
  const at::Tensor zero = at::zeros({});
  const at::Tensor min = at::min(least, zero);
  const at::Tensor max = at::max(greatest, zero);
  const at::Tensor scale = at::max((max - min) * (1.0F / 255.0F), at::full({}, 0x1p-23F));
  const at::Tensor steps = at::nan_to_num(at::round(min / scale));
  return {scale, at::clamp(at::rsub(steps, 0), 0, 255).to(at::kInt)};
}

// The codes of x.
inline at::Tensor quantized_model(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point) {
  return quantize_backend(x, scale.to(x.scalar_type()), zero_point);
}

}  // namespace narrowcast::test
