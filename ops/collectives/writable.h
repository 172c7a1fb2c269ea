// Tensors that are written in place.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace narrowcast::collectives {

// c10::ValueError if elements of `tensor` share memory with each other, as those of an expanded one do: such a tensor
// cannot hold what is written to it.
void check_writable(const std::string& name, const at::Tensor& tensor);

}  // namespace narrowcast::collectives
