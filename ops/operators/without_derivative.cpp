// Quantisation is piecewise constant, and data from other ranks is rounded: there is no useful gradient. Without a
// kernel here, autograd would treat the outputs as constants and silently compute wrong gradients. With these kernels
// the forward pass works, and backward through an output throws an error that names the operator.
#include "ops/operators/without_derivative.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "ops/common/libtorch_versions.h"

namespace narrowcast::autograd {
namespace {

using torch::autograd::NotImplemented;

bool any_needs_gradient(at::TensorList tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); });
}

auto make_node(const std::string& name, at::TensorList inputs, at::TensorList outputs) {
  return libtorch::make_node<NotImplemented>(name, torch::autograd::collect_next_edges(inputs, outputs));
}

void append(const c10::IValue& argument, std::vector<at::Tensor>& tensors) {
  if (argument.isTensor()) {
    tensors.push_back(argument.toTensor());
  } else if (argument.isTensorList()) {
    const auto list = argument.toTensorVector();
    tensors.insert(tensors.end(), list.begin(), list.end());
  }
}

void check_outputs(at::TensorList inputs, at::TensorList outputs) {
  const bool needs = needs_gradient(inputs, outputs) == Gradient::kNeeded;
  for (const at::Tensor& output : outputs) {
    if (output.defined()) {
      torch::autograd::check_inplace(output, needs);
    }
  }
}

void write_checked(const std::string& name, at::TensorList inputs, at::TensorList outputs,
                   const std::function<void()>& write) {
  const bool needs = needs_gradient(inputs, outputs) == Gradient::kNeeded;
  const auto node = needs ? make_node(name, inputs, outputs) : nullptr;
  {
    const at::AutoDispatchBelowAutograd below_autograd;
    write();
  }
  for (const at::Tensor& output : outputs) {
    torch::autograd::rebase_history(output, node);
  }
}

// The Autograd kernel of an operator whose own kernels call check_output before they write anything; kernels that
// communicate then report the error to the other ranks. The outputs are the arguments that the schema marks as written;
// the inputs are all other tensors.
void run_boxed(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto values = torch::jit::last(*stack, arguments.size());
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* const alias = arguments[i].alias_info();
    append(values[i], alias != nullptr && alias->isWrite() ? outputs : inputs);
  }
  // Kernels that communicate check outputs themselves, so that all ranks get the error. The meta kernels do not.
  write_checked(op.schema().name(), inputs, outputs, [&] {
    op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
    check_outputs(inputs, outputs);
  });
}

}  // namespace

Gradient needs_gradient(at::TensorList inputs, at::TensorList outputs) {
  const bool needs = at::GradMode::is_enabled() && (any_needs_gradient(inputs) || any_needs_gradient(outputs));
  return needs ? Gradient::kNeeded : Gradient::kNone;
}

void check_output(const std::string& name, const at::Tensor& output, Gradient gradient) {
  try {
    torch::autograd::check_inplace(output, gradient == Gradient::kNeeded);
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false, name, " cannot be written in place: ", error.what_without_backtrace());
  }
}

void write_without_derivative(const std::string& name, at::TensorList inputs, at::TensorList outputs,
                              const std::function<void()>& write) {
  check_outputs(inputs, outputs);
  write_checked(name, inputs, outputs, write);
}

TORCH_LIBRARY_IMPL(narrowcast, Autograd, m) {
  // Operators that return new tensors: PyTorch's own fallback.
  for (const char* name : {"choose_qparams_per_tensor", "choose_qparams_per_channel", "quantize_per_tensor",
                           "quantize_per_channel", "dequantize_per_tensor", "dequantize_per_channel", "quantize_tensor",
                           "quantize_tensor_list", "dequantize_tensor", "dequantize_tensor_list",
                           "dynamically_quantize_per_channel", "encode", "decode", "quantized_all_reduce"}) {
    m.impl(name, torch::autograd::autogradNotImplementedFallback());
  }
  // Operators that write to their arguments, which their schemas mark.
  for (const char* name : {"auto_quantize_all_gather", "auto_quantize_all_to_all", "auto_quantize_all_to_all_single",
                           "quantized_all_reduce_", "quantized_reduce_scatter_"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_boxed>());
  }
}

}  // namespace narrowcast::autograd
