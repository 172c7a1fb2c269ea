// Autograd of functions that write to their arguments and have no derivative.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace narrowcast::autograd {

// Runs `write`, which computes `outputs` in place from `inputs` outside autograd. If one of them needs a gradient, a
// later backward through an output throws "derivative for NAME is not implemented"; otherwise autograd would treat the
// values as constants. Throws before `write` if an output must not be written in place. Undefined tensors are skipped.
void write_without_derivative(const std::string& name, at::TensorList inputs, at::TensorList outputs,
                              const std::function<void()>& write);

// Whether autograd must record a write.
enum class Gradient { kNone, kNeeded };

// kNeeded if an input or output requires a gradient and gradients are recorded.
Gradient needs_gradient(at::TensorList inputs, at::TensorList outputs);

// Throws c10::ValueError if the output `name` must not be written in place. If a gradient is needed, these are a leaf
// that requires one, a view of such a leaf, and a view whose history cannot be changed, e.g. a result of unbind.
void check_output(const std::string& name, const at::Tensor& output, Gradient gradient);

}  // namespace narrowcast::autograd
