// The Linear layer of the bundled models: LibTorch's, except that it can become weight-only int8 in place.
// (torch::nn::LinearImpl::forward is not virtual, so code that holds a torch::nn::Linear would not call another.)
#pragma once

#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <memory>
#include <optional>

#include <narrowcast/export.h>

namespace narrowcast::models {

// x [..., in] -> [..., out]: linear(x, weight, bias) with the parameters `weight` [out, in] and `bias` [out] (undefined
// without a bias). Options, names and initialisation are those of torch::nn::Linear.
class NARROWCAST_EXPORT LinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;

  // After quantize_weight: narrowcast::weight_only_int8_linear, in which the weight has no gradient.
  at::Tensor forward(const at::Tensor& x);

  // Makes `weight` an int8 buffer and adds the buffer `scales` [out] of its former dtype. Codes and scales are the
  // results of dynamically_quantize_per_channel (-128..127; narrowcast/weight_only_int8.h) for the weight's float32
  // values. The bias stays. It cannot be undone; a second call does nothing.
  void quantize_weight();

  // Whether quantize_weight was called.
  bool is_quantized() const { return scales.defined(); }

  // Returns a layer with copies of the tensors, on `device` if one is given.
  std::shared_ptr<torch::nn::Module> clone(const std::optional<c10::Device>& device = std::nullopt) const override;

  at::Tensor scales;  // undefined until quantize_weight
};

// Number of elements of a layer's weight and bias.
constexpr int64_t linear_parameters(int64_t inputs, int64_t outputs) { return (inputs + 1) * outputs; }

// Holds a LinearImpl, as torch::nn::Linear holds a torch::nn::LinearImpl.
TORCH_MODULE(Linear);

}  // namespace narrowcast::models
