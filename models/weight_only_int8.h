// Weight-only int8 for whole models, as gpt-fast's quantize.py has it: every
// Linear layer's weight becomes int8 with one scale per output.
//
//   narrowcast::models::WeightOnlyInt8QuantHandler handler(model);
//   auto state = handler.create_quantized_state_dict();  // to be written to a file
//   handler.convert_for_runtime();                       // the model now runs in int8
//
// Unlike gpt-fast's, layers keep their bias, scales keep the weight's dtype,
// and a converted model has its quantised weights at once.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <narrowcast/linear.h>

namespace narrowcast::models {

// What the tensors of a Linear layer are called, the second of a quantised one only.
inline constexpr const char* kWeight = "weight";
inline constexpr const char* kScales = "scales";

// The name of a layer's tensor in the state of a module: "LAYER.weight", and "weight" of the module itself.
inline std::string entry_of(const std::string& layer, const std::string& tensor) {
  return layer.empty() ? tensor : layer + "." + tensor;
}

// A Linear layer's weight as weight-only int8.
struct QuantizedWeight {
  at::Tensor codes;   // int8 [out, in]
  at::Tensor scales;  // [out], of the weight's dtype
};

// Quantises a floating weight [out, in], in >= 1, on its device, with no gradient: the codes and scales are what
// dynamically_quantize_per_channel (-128..127) gives for its float32 values. Throws c10::TypeError for another dtype.
QuantizedWeight quantize_weight(const at::Tensor& weight);

// The shape and the dtype of a WeightOnlyInt8Linear.
struct WeightOnlyInt8LinearOptions {
  int64_t in_features = 0;                   // >= 0
  int64_t out_features = 0;                  // >= 0
  bool bias = true;                          // whether there is one
  at::ScalarType scales_dtype = at::kFloat;  // of scales and bias; the output has the input's
};

// A Linear layer for models that are not trained any more: x [..., in] -> [..., out] is
// narrowcast::weight_only_int8_linear(x, weight, scales, bias), with the buffers `weight`
// int8 [out, in] and `scales` [out] and the parameter `bias` [out] (undefined without one). A new layer has weights 0,
// scales 1 and bias 0: it is there to be filled from a state dict.
class WeightOnlyInt8LinearImpl : public torch::nn::Cloneable<WeightOnlyInt8LinearImpl> {
 public:
  // Throws c10::ValueError for a negative size, c10::TypeError for scales that are not floating.
  explicit WeightOnlyInt8LinearImpl(const WeightOnlyInt8LinearOptions& options);

  // Makes a layer that has the linear one's weight, quantised, scales of the weight's dtype, and the same bias.
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

// Parameters and buffers by name.
using StateDict = std::map<std::string, at::Tensor>;

// Quantises the Linear layers of torch::nn modules: torch::nn::Linear, models::Linear and classes derived from
// models::LinearImpl whose forward calls LinearImpl::forward. Both functions throw c10::ValueError, naming the
// submodule and before anything is changed, for any other class derived from torch::nn::Linear.
class WeightOnlyInt8QuantHandler {
 public:
  // Throws c10::ValueError for no module.
  explicit WeightOnlyInt8QuantHandler(std::shared_ptr<torch::nn::Module> module);

  // Has, for every Linear layer `name` of the tree, `name.weight` int8 [out, in] and `name.scales` [out] of the
  // weight's dtype, both on the CPU; all other entries as they are in the module, without a gradient. The module stays
  // as it is.
  StateDict create_quantized_state_dict() const;

  // Converts the module's Linear layers where they are and returns the module: a models::Linear becomes int8 itself, a
  // torch::nn::Linear in a Sequential is replaced by a WeightOnlyInt8Linear. Names are those of the state dict above.
  // Throws c10::ValueError likewise if there is a torch::nn::Linear anywhere else.
  std::shared_ptr<torch::nn::Module> convert_for_runtime();

 private:
  std::shared_ptr<torch::nn::Module> module_;
};

// A Linear layer that stays as it is.
struct FloatLayer {
  std::string name;    // in the module, e.g. "self_attn.out_proj"; "" is the module itself
  std::string reason;  // e.g. "'self_attn' uses its weight itself"
};

// Quantises the Linear layers of TorchScript modules, scripted or traced. A Linear layer is an instance of
// torch.nn.Linear or of a class that derives from it or computes the same: a submodule with a parameter or buffer
// `weight` [out, in] by which its methods multiply (torch.nn.functional.linear), whatever else they do.
class ScriptWeightOnlyInt8QuantHandler {
 public:
  explicit ScriptWeightOnlyInt8QuantHandler(torch::jit::Module module);

  // Has the same entries for every Linear layer but those that stay.
  StateDict create_quantized_state_dict() const;

  // The Linear layers that cannot be converted: their weight is used for more than their own products, for instance by
  // the module around them, or they are of one TorchScript type with such a layer. Also modules of a Linear layer's
  // type whose own weight is complex or no matrix.
  std::vector<FloatLayer> layers_that_stay() const;

  // A copy of the module whose other Linear layers multiply by narrowcast::weight_only_int8_linear; it shares all other
  // tensors with the original, which stays as it is. It can be saved, and loaded wherever libnarrowcast_ops is. Throws
  // c10::ValueError naming the submodule for hooks around a forward (register_forward_hook), which no copy keeps.
  torch::jit::Module convert_for_runtime() const;

 private:
  torch::jit::Module module_;
};

}  // namespace narrowcast::models
