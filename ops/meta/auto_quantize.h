// The part of the auto_quantize operators' contract that needs no process group:
// they throw unless all tensors are defined, of the four float types, dense and on
// one device. The meta kernels consist of them; the collectives start with them.
#pragma once

#include <ATen/core/Tensor.h>

namespace narrowcast::meta {

// For auto_quantize_all_gather.
void check_all_gather(at::TensorList outputs, const at::Tensor& input);

// For auto_quantize_all_to_all.
void check_all_to_all(at::TensorList outputs, at::TensorList inputs);

// For auto_quantize_all_to_all_single.
void check_all_to_all_single(const at::Tensor& output, const at::Tensor& input);

// Throws unless `async_op` is false: an operator has no work to return.
void check_synchronous(bool async_op);

}  // namespace narrowcast::meta
