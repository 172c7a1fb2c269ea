// Autograd of functions that write to their arguments and have no derivative.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace narrowcast::autograd {

// Runs `write`, which computes `outputs` in place from `inputs` outside autograd. Where one of them needs a gradient,
// backward through an output then throws "derivative for NAME is not implemented" instead of taking the values for
// constants; an output that must not be written in place throws before `write`. Undefined tensors are skipped.
void write_without_derivative(const std::string& name, at::TensorList inputs, at::TensorList outputs,
                              const std::function<void()>& write);

// Whether autograd must know of a write.
enum class Gradient { kNone, kNeeded };

// kNeeded where an input or output requires a gradient and gradients are recorded.
Gradient needs_gradient(at::TensorList inputs, at::TensorList outputs);

// Throws c10::ValueError if the output `name` must not be written in place: where a gradient is needed a leaf that
// requires one, a view of it, and a view whose history cannot be changed, as unbind's.
void check_output(const std::string& name, const at::Tensor& output, Gradient gradient);

}  // namespace narrowcast::autograd
