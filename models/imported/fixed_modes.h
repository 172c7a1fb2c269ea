// Operators of a TorchScript module that ignore whether it is in training or evaluation mode.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <string>

namespace narrowcast::models {

// Tracing (torch.jit.trace) records operators with the mode that the module has at that time: batch norm, instance norm
// and dropout no longer follow train() and eval(). Returns a list of the module's operators of this kind, for a
// message: "aten::dropout in training mode (2 times, first in 'layers.3')", several joined by "; ", sorted by name.
// Empty if all follow the mode or compute the same in both modes (a dropout of 0, a batch norm without running
// averages).
std::string describe_fixed_modes(const torch::jit::Module& module);

}  // namespace narrowcast::models
