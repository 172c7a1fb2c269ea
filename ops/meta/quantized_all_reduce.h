// The contract of quantized_all_reduce_ and quantized_all_reduce, as far as one rank alone can check it.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

namespace narrowcast::meta {

// Returns what the mean is written to, for x [...]: a tensor of its shape and dtype, contiguous and not yet filled.
at::Tensor quantized_all_reduce(const at::Tensor& x, std::string_view format);

// x, which is written in place.
void check_quantized_all_reduce(const at::Tensor& x, std::string_view format);

}  // namespace narrowcast::meta
