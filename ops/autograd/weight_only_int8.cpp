// Gradients of the weight-only int8 operators.
//
// Quantisation is constant between its steps, so it has no useful gradient:
// with PyTorch's fallback the forward pass works and backward through an output
// throws, naming the operator.
//
// The linear layer y = linear(x, weight) * scales + bias has
//   dx = (dy * scales) weight, dbias = sum of dy over the leading dimensions,
// written in differentiable operators, so that second derivatives work too.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sum.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <numeric>
#include <optional>
#include <vector>

#include "ops/dispatch.h"

namespace narrowcast {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor sum_leading_dimensions(const at::Tensor& gradient) {
  std::vector<int64_t> leading(static_cast<size_t>(gradient.dim() - 1));
  std::iota(leading.begin(), leading.end(), 0);
  return leading.empty() ? gradient : gradient.sum(leading);
}

struct WeightOnlyInt8Linear : torch::autograd::Function<WeightOnlyInt8Linear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& scales, const std::optional<at::Tensor>& bias) {
    using Linear =
        at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&);
    static const auto op = find_operator<Linear>("narrowcast::weight_only_int8_linear");
    context->save_for_backward({weight, scales});
    if (bias.has_value()) context->saved_data["bias_dtype"] = bias->scalar_type();
    const at::AutoDispatchBelowADInplaceOrView guard;
    return op.call(input, weight, scales, bias);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    constexpr size_t kInput = 0;
    constexpr size_t kBias = 3;
    const at::Tensor& gradient = gradients[0];
    variable_list of_arguments(4);
    if (context->needs_input_grad(kInput)) {
      const variable_list saved = context->get_saved_variables();
      const at::ScalarType dtype = gradient.scalar_type();
      of_arguments[kInput] = (gradient * saved[1].to(dtype)).matmul(saved[0].to(dtype));
    }
    const auto bias_dtype = context->saved_data.find("bias_dtype");
    if (bias_dtype != context->saved_data.end() && context->needs_input_grad(kBias)) {
      of_arguments[kBias] = sum_leading_dimensions(gradient).to(bias_dtype->second.toScalarType());
    }
    return of_arguments;
  }
};

// Autograd would speak of undefined tensors in its own terms; all else is for the kernels to refuse.
at::Tensor weight_only_int8_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& scales,
                                   const std::optional<at::Tensor>& bias) {
  check_defined(input, "input");
  check_defined(weight, "weight");
  check_defined(scales, "scales");
  if (bias.has_value()) check_defined(*bias, "bias");
  TORCH_CHECK_VALUE(!(c10::GradMode::is_enabled() && scales.requires_grad()),
                    "scales requires a gradient, and weight_only_int8_linear has none for it: pass scales.detach()");
  return WeightOnlyInt8Linear::apply(input, weight, scales, bias);
}

}  // namespace

TORCH_LIBRARY_IMPL(narrowcast, Autograd, m) {
  m.impl("dynamically_quantize_per_channel", torch::autograd::autogradNotImplementedFallback());
  m.impl("weight_only_int8_linear", &weight_only_int8_linear);
}

}  // namespace narrowcast
