// The contract of the FP16 and BFP16 operators: each function checks its
// operator's arguments and returns the output, allocated and not yet filled, on
// the input's device. They are the meta kernels; CPU and CUDA kernels start with
// them, so that every device refuses and returns the same.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>

namespace narrowcast::meta {

// Throw unless `tensor`, called `name` in messages, can be the input of quantize_tensor and dequantize_tensor.
void check_quantizable(const at::Tensor& tensor, const std::string& name);
void check_dequantizable(const at::Tensor& tensor, const std::string& name);

// For x [...]: q float16 [...].
at::Tensor quantize_tensor(const at::Tensor& x, std::string_view qtype);

// For q [...]: float32 [...].
at::Tensor dequantize_tensor(const at::Tensor& q, std::string_view qtype, std::optional<double> quant_loss);

}  // namespace narrowcast::meta
