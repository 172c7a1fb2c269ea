// A Linear layer's weight as weight-only int8.
#pragma once

#include <ATen/core/Tensor.h>

namespace narrowcast::models {

struct QuantizedWeight {
  at::Tensor codes;   // int8 [out, in]
  at::Tensor scales;  // [out], of the weight's dtype
};

// Of a floating weight [out, in], in >= 1, on its device, with no gradient: the codes and scales that
// dynamically_quantize_per_channel (-128..127) gives for its float32 values. Throws c10::TypeError for another dtype.
QuantizedWeight quantize_weight(const at::Tensor& weight);

}  // namespace narrowcast::models
