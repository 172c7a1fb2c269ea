// Operators of a TorchScript module that do one and the same in training and in evaluation mode.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <string>

namespace narrowcast::models {

// Tracing (torch.jit.trace) records operators with the mode that the module had then: batch norm, instance norm and
// dropout no longer follow train() and eval(). Returns what the module's code has of them, for a message:
// "aten::dropout in training mode (2 times, first in 'layers.3')", several joined by "; ", the earlier names first.
// Empty if all follow the mode, or neither mode changes what they compute (a dropout of 0, a batch norm without running
// averages).
std::string describe_fixed_modes(const torch::jit::Module& module);

}  // namespace narrowcast::models
