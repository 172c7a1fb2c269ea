// A Linear layer whose weight is int8, for models that are not trained any more.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <ostream>

namespace narrowcast::models {

struct WeightOnlyInt8LinearOptions {
  int64_t in_features = 0;                   // >= 0
  int64_t out_features = 0;                  // >= 0
  bool bias = true;                          // whether there is one
  at::ScalarType scales_dtype = at::kFloat;  // of scales and bias; the output has the input's
};

// x [..., in] -> [..., out]: narrowcast::weight_only_int8_linear(x, weight, scales, bias), with the buffers `weight`
// int8 [out, in] and `scales` [out] and the parameter `bias` [out] (undefined without one). A new layer has weights 0,
// scales 1 and bias 0: it is there to be filled from a state dict.
class WeightOnlyInt8LinearImpl : public torch::nn::Cloneable<WeightOnlyInt8LinearImpl> {
 public:
  // Throws c10::ValueError for a negative size, c10::TypeError for scales that are not floating.
  explicit WeightOnlyInt8LinearImpl(const WeightOnlyInt8LinearOptions& options);

  // With the layer's weight quantised, scales of the weight's dtype, and its own bias.
  static std::shared_ptr<WeightOnlyInt8LinearImpl> from(const torch::nn::LinearImpl& linear);

  at::Tensor forward(const at::Tensor& x);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  WeightOnlyInt8LinearOptions options;
  at::Tensor weight;
  at::Tensor scales;
  at::Tensor bias;
};

// Holds a WeightOnlyInt8LinearImpl.
TORCH_MODULE(WeightOnlyInt8Linear);

}  // namespace narrowcast::models
