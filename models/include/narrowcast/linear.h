// The Linear layer of the bundled models: LibTorch's, but one that can become
// weight-only int8 where it stands. (torch::nn::LinearImpl::forward is not
// virtual, so a layer that others hold by its type cannot be replaced.)
#pragma once

#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <memory>
#include <optional>

#include <narrowcast/export.h>

namespace narrowcast::models {

// x [..., in] -> [..., out]: linear(x, weight, bias) with the parameters `weight` [out, in] and `bias` [out] (undefined
// without one); options, names and initialisation are torch::nn::Linear's.
class NARROWCAST_EXPORT LinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;

  // After quantize_weight: narrowcast::weight_only_int8_linear, which gives no gradient to the weight.
  at::Tensor forward(const at::Tensor& x);

  // Makes `weight` an int8 buffer and adds the buffer `scales` [out] of its former dtype: the codes and scales that
  // dynamically_quantize_per_channel (-128..127; narrowcast/weight_only_int8.h) gives for its float32 values. The bias
  // stays. Does nothing if that was done before; it cannot be undone.
  void quantize_weight();

  // Whether quantize_weight was called.
  bool is_quantized() const { return scales.defined(); }

  // Returns a layer with equal tensors of its own, on `device` if one is given.
  std::shared_ptr<torch::nn::Module> clone(const std::optional<c10::Device>& device = std::nullopt) const override;

  at::Tensor scales;  // undefined until quantize_weight
};

// Numbers in the weight and the bias of a layer of so many inputs and outputs.
constexpr int64_t linear_parameters(int64_t inputs, int64_t outputs) { return (inputs + 1) * outputs; }

// Holds a LinearImpl, as torch::nn::Linear does its.
TORCH_MODULE(Linear);

}  // namespace narrowcast::models
