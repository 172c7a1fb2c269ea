// The contract of the operators of FP16 and BFP16, and of the collectives that send tensors in these formats; see
// meta.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>

namespace narrowcast::meta {

// These throw unless `tensor`, called `name` in messages, is a valid input of quantize_tensor or dequantize_tensor,
// respectively.
void check_quantizable(const at::Tensor& tensor, const std::string& name);
void check_dequantizable(const at::Tensor& tensor, const std::string& name);

// For x [...]: q float16 [...].
at::Tensor quantize_tensor(const at::Tensor& x, std::string_view qtype);

// For q [...]: float32 [...].
at::Tensor dequantize_tensor(const at::Tensor& q, std::string_view qtype, std::optional<double> quant_loss);

// The part of the auto_quantize operators' contract that needs no process group. These throw unless all tensors are
// defined, of the four float types, dense and on one device. The collectives call them first.
void check_all_gather(at::TensorList outputs, const at::Tensor& input);
void check_all_to_all(at::TensorList outputs, at::TensorList inputs);
void check_all_to_all_single(const at::Tensor& output, const at::Tensor& input);

// Throws c10::ValueError for async_op=True: an operator cannot return a work.
[[noreturn]] void refuse_async_op();

}  // namespace narrowcast::meta
