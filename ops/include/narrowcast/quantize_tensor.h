// FP16 and BFP16: conversion of float tensors to half the bytes, and back. The formats are those of PyTorch's
// torch/distributed/algorithms/_quantization/quantization.py. The operators of the same names are described in
// docs/reference/operators.md; narrowcast/auto_quantize.h sends tensors in these formats.
//
// All functions go through the dispatcher, so they run on the tensor's device, accept tensors of any layout and any
// number of dimensions, trace and script. Outputs are contiguous. There are no gradients: backward throws.
//
// x is float32, float64, bfloat16 or float16; q is float16. A c10::ValueError or c10::TypeError names an argument that
// is wrong.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <ostream>
#include <string_view>
#include <vector>

#include <narrowcast/export.h>

namespace NARROWCAST_EXPORT narrowcast {

// The format of a float that is sent. Prints as the operators' `qtype`.
enum class DQuantType {
  kFp16,   // binary16, clamped to +-65504: 11 significant bits, 6e-8 to 65504. "fp16"
  kBfp16,  // The upper half of float32, rounded half away from zero: 8 significant bits, the same range. "bfp16"
};

// "fp16" or "bfp16". Throws c10::ValueError if `qtype` is not a valid DQuantType.
std::string_view to_string(DQuantType qtype);

// Prints to_string(qtype).
std::ostream& operator<<(std::ostream& stream, DQuantType qtype);

// The inverse of to_string. Throws c10::ValueError for other names.
DQuantType parse_dquant_type(std::string_view name);

// x [...] -> q float16 [...].
// With kBfp16, the 16 bits are not a float16: only dequantize_tensor can read them. Other dtypes than float32 are first
// rounded to it. FP16 rounds the limit 65504 to x's dtype, as PyTorch does: in bfloat16 it is 65536, so that such
// values become Inf.
at::Tensor quantize_tensor(const at::Tensor& x, DQuantType qtype);

// quantize_tensor of each tensor; dtypes, shapes and devices may differ. Empty for an empty list.
std::vector<at::Tensor> quantize_tensor_list(at::TensorList xs, DQuantType qtype);

// q float16 [...] -> float32 [...], divided by quant_loss (rounded to float32) if given.
at::Tensor dequantize_tensor(const at::Tensor& q, DQuantType qtype, std::optional<double> quant_loss = std::nullopt);

// dequantize_tensor of each tensor; shapes and devices may differ. Empty for an empty list.
std::vector<at::Tensor> dequantize_tensor_list(at::TensorList qs, DQuantType qtype,
                                               std::optional<double> quant_loss = std::nullopt);

}  // namespace narrowcast
