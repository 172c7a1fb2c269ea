// Whether numbers can be used.
#pragma once

#include <ATen/core/Tensor.h>

namespace narrowcast {

// Whether no value is infinite or NaN; `values` is not empty. With a NaN among them, both bounds are NaN.
inline bool all_finite(const at::Tensor& values) {
  const auto [least, greatest] = values.aminmax();
  return (least - least + (greatest - greatest)).eq(0).item<bool>();
}

}  // namespace narrowcast
