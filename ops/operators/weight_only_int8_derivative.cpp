// The derivative of weight_only_int8_linear. y = linear(x, weight) * scales + bias has
//   dx = (dy * scales) weight, dbias = sum of dy over the leading dimensions.
// Both are written in differentiable operators, so that second derivatives exist. The layer is linear in x and the bias
// together, so it is its own directional derivative.
//
// A torch::autograd::Function handles most calls, with LibTorch's full support for such functions. But it does not
// support torch.func's transforms and forward mode. For these there is a separate node, as in LibTorch's own kernels.
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sum.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "ops/common/libtorch_versions.h"
#include "ops/operators/dispatch.h"
#include "ops/operators/weight_only_int8.h"

namespace narrowcast {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::isFwGradDefined;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& weight, const at::Tensor& scales) {
  const at::ScalarType dtype = gradient.scalar_type();
  return (gradient * scales.to(dtype)).matmul(weight.to(dtype));
}

at::Tensor bias_gradient(const at::Tensor& gradient, at::ScalarType dtype) {
  std::vector<int64_t> leading(static_cast<size_t>(gradient.dim() - 1));
  std::iota(leading.begin(), leading.end(), 0);
  return (leading.empty() ? gradient : gradient.sum(leading)).to(dtype);
}

struct WeightOnlyInt8Linear : torch::autograd::Function<WeightOnlyInt8Linear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& scales, const std::optional<at::Tensor>& bias) {
    context->save_for_backward({weight, scales});
    if (bias.has_value()) context->saved_data["bias_dtype"] = bias->scalar_type();
    const at::AutoDispatchBelowADInplaceOrView guard;
    return linear_operator().call(input, weight, scales, bias);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    constexpr size_t kInput = 0;
    constexpr size_t kBias = 3;
    variable_list of_arguments(4);
    if (context->needs_input_grad(kInput)) {
      const variable_list saved = context->get_saved_variables();
      of_arguments[kInput] = input_gradient(gradients[0], saved[0], saved[1]);
    }
    const auto bias_dtype = context->saved_data.find("bias_dtype");
    if (bias_dtype != context->saved_data.end() && context->needs_input_grad(kBias)) {
      of_arguments[kBias] = bias_gradient(gradients[0], bias_dtype->second.toScalarType());
    }
    return of_arguments;
  }
};

// The same for torch.func's transforms and forward mode.
class WeightOnlyInt8LinearBackward : public torch::autograd::Node {
 public:
  WeightOnlyInt8LinearBackward(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& scales,
                               const std::optional<at::Tensor>& bias)
      : Node(torch::autograd::collect_next_edges(input, bias)),
        weight_(weight, /*is_output=*/false),
        scales_(scales, /*is_output=*/false),
        bias_dtype_(bias.has_value() ? bias->scalar_type() : at::kFloat) {}

  std::string name() const override { return "WeightOnlyInt8LinearBackward"; }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    weight_.reset_data();
    scales_.reset_data();
  }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard lock(mutex_);
    variable_list of_arguments(2);
    const at::Tensor& gradient = gradients[0];
    if (!gradient.defined()) return of_arguments;
    if (task_should_compute_output(0)) {
      of_arguments[0] = input_gradient(gradient, weight_.unpack(), scales_.unpack());
    }
    if (task_should_compute_output(1)) of_arguments[1] = bias_gradient(gradient, bias_dtype_);
    return of_arguments;
  }

 private:
  SavedVariable weight_;
  SavedVariable scales_;
  at::ScalarType bias_dtype_;
};

// The derivative of the output in the direction of the tangents of input and bias, of which at least one is defined.
at::Tensor directional_derivative(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& scales,
                                  const std::optional<at::Tensor>& bias, const at::Tensor& output) {
  const std::optional<at::Tensor> of_bias =
      isFwGradDefined(bias) ? std::optional(bias->_fw_grad(/*level=*/0)) : std::nullopt;
  return isFwGradDefined(input) ? linear_operator().call(input._fw_grad(/*level=*/0), weight, scales, of_bias)
                                : of_bias->to(output.scalar_type()).expand_as(output);
}

// Autograd's own message for an undefined tensor would not name the argument. The kernels check everything else.
void check_differentiable(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& scales,
                          const std::optional<at::Tensor>& bias) {
  check_defined(input, "input");
  check_defined(weight, "weight");
  check_defined(scales, "scales");
  if (bias.has_value()) check_defined(*bias, "bias");
  TORCH_CHECK_VALUE(
      !(c10::GradMode::is_enabled() && scales.requires_grad()) && !isFwGradDefined(scales),
      "scales requires a gradient, but weight_only_int8_linear does not compute it: pass scales.detach()");
}

at::Tensor transformed_linear(c10::DispatchKeySet keys, const at::Tensor& input, const at::Tensor& weight,
                              const at::Tensor& scales, const std::optional<at::Tensor>& bias) {
  using Node = decltype(libtorch::make_node<WeightOnlyInt8LinearBackward>(input, weight, scales, bias));
  const Node node = torch::autograd::compute_requires_grad(input, bias)
                        ? libtorch::make_node<WeightOnlyInt8LinearBackward>(input, weight, scales, bias)
                        : nullptr;
  at::Tensor output = [&] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return linear_operator().redispatch(keys & c10::after_autograd_keyset, input, weight, scales, bias);
  }();
  if (node != nullptr) torch::autograd::set_history(output, node);
  if (isFwGradDefined(input) || isFwGradDefined(bias)) {
    output._set_fw_grad(directional_derivative(input, weight, scales, bias, output), /*level=*/0,
                        /*is_inplace_op=*/false);
  }
  return output;
}

at::Tensor differentiable_linear(c10::DispatchKeySet keys, const at::Tensor& input, const at::Tensor& weight,
                                 const at::Tensor& scales, const std::optional<at::Tensor>& bias) {
  check_differentiable(input, weight, scales, bias);
  const bool is_transformed =
      isFwGradDefined(input) || isFwGradDefined(bias) || at::functorch::maybeCurrentDynamicLayer().has_value();
  return is_transformed ? transformed_linear(keys, input, weight, scales, bias)
                        : WeightOnlyInt8Linear::apply(input, weight, scales, bias);
}

}  // namespace

TORCH_LIBRARY_IMPL(narrowcast, Autograd, m) { m.impl("weight_only_int8_linear", &differentiable_linear); }

}  // namespace narrowcast
