#include "models/quantize_weight.h"

#include <c10/util/Exception.h>

#include <narrowcast/weight_only_int8.h>

namespace narrowcast::models {

QuantizedWeight quantize_weight(const at::Tensor& weight) {
  TORCH_CHECK_TYPE(weight.is_floating_point(), "weight must be floating, not ", weight.scalar_type());
  const auto [codes, scales, zero_points] =
      dynamically_quantize_per_channel(weight.detach().to(at::kFloat), -128, 127, at::kChar);
  return {codes, scales.to(weight.scalar_type())};
}

}  // namespace narrowcast::models
