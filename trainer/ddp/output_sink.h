// A node of the autograd graph between a module's outputs and the loss.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace narrowcast {

// Copies of `outputs` (only of those with a gradient; others stay as they are)
// whose backward
//  - calls `on_backward` first, if there is one, on the thread of the backward pass;
//  - reaches all outputs: those that the loss does not use get an undefined
//    gradient instead of none, so that the Reducer hears of every parameter that
//    they depend on.
// Copies, because views made by such a node could not be changed in place.
std::vector<at::Tensor> pass_through_sink(const std::vector<at::Tensor>& outputs,
                                          const std::function<void()>& on_backward);

}  // namespace narrowcast
