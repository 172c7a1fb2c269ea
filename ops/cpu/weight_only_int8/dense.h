// weight_only_int8_linear for many rows on LibTorch's dense matrix product.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/cpu/weight_only_int8/int8_layer.h"

namespace narrowcast::cpu {

// y [rows, outputs] for x [rows, inputs], inputs >= 1: both float32 or both bfloat16, contiguous. Codes are widened to
// x's dtype block by block, so that the widened ones stay in the cache. In bfloat16 the product is rounded before it is
// scaled, as in the reference. The order of sums is LibTorch's.
void multiply_dense(const at::Tensor& x, const Int8Layer& layer, const at::Tensor& y);

}  // namespace narrowcast::cpu
