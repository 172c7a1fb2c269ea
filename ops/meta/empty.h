// Results of operators on tensors without data.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

namespace narrowcast::meta {

// A contiguous tensor of `sizes` and `dtype`, on the device of `like`.
inline at::Tensor empty(c10::SymIntArrayRef sizes, const at::Tensor& like, at::ScalarType dtype) {
  return at::empty_symint(sizes, like.options().dtype(dtype).memory_format(at::MemoryFormat::Contiguous));
}

}  // namespace narrowcast::meta
