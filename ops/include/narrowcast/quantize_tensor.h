// FP16 and BFP16: float tensors carried in half the bytes, and back. The formats
// of PyTorch's torch/distributed/algorithms/_quantization/quantization.py.
// docs/operators.md describes the operators of the same names;
// narrowcast/auto_quantize.h sends tensors this way.
//
// All functions go through the dispatcher, so they run on the tensor's device,
// take tensors of any layout and any number of dimensions, trace and script.
// Outputs are contiguous. There are no gradients: backward throws.
//
// x is float32, float64, bfloat16 or float16; q is float16. c10::ValueError or
// c10::TypeError names the argument that is otherwise.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <ostream>
#include <string_view>
#include <vector>

#include <narrowcast/export.h>

namespace NARROWCAST_EXPORT narrowcast {

// What a float becomes on its way. Prints as the operators' `qtype`.
enum class DQuantType {
  kFp16,   // binary16, clamped to +-65504: 11 significant bits, 6e-8 to 65504. "fp16"
  kBfp16,  // The upper half of float32, rounded half away from zero: 8 significant bits, all of its range. "bfp16"
};

// "fp16" or "bfp16". c10::ValueError for a number that is no DQuantType.
std::string_view to_string(DQuantType qtype);

// Prints to_string(qtype).
std::ostream& operator<<(std::ostream& stream, DQuantType qtype);

// The inverse of to_string. c10::ValueError for other names.
DQuantType parse_dquant_type(std::string_view name);

// x [...] -> q float16 [...]. kBfp16 fills float16's 16 bits with bits of its own:
// only dequantize_tensor knows their values. Other dtypes than float32 are rounded
// to it first, and FP16 rounds the limit 65504 to x's dtype, as PyTorch does: in
// bfloat16 it is 65536, so that such values become Inf.
at::Tensor quantize_tensor(const at::Tensor& x, DQuantType qtype);

// quantize_tensor of each; dtypes, shapes and devices may differ. Empty for no tensors.
std::vector<at::Tensor> quantize_tensor_list(at::TensorList xs, DQuantType qtype);

// q float16 [...] -> float32 [...], divided by quant_loss (rounded to float32) if given.
at::Tensor dequantize_tensor(const at::Tensor& q, DQuantType qtype, std::optional<double> quant_loss = std::nullopt);

// dequantize_tensor of each; shapes and devices may differ. Empty for no tensors.
std::vector<at::Tensor> dequantize_tensor_list(at::TensorList qs, DQuantType qtype,
                                               std::optional<double> quant_loss = std::nullopt);

}  // namespace narrowcast
