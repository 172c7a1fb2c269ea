// Weight-only int8 for whole models, as in gpt-fast's quantize.py: every Linear layer's weight becomes int8 with one
// scale per output.
//
//   narrowcast::models::WeightOnlyInt8QuantHandler handler(model);
//   auto state = handler.create_quantized_state_dict();  // to be written to a file
//   handler.convert_for_runtime();                       // the model now runs in int8
//
// Unlike in gpt-fast, layers keep their bias, scales keep the weight's dtype, and a converted model has its quantised
// weights at once.
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

// The names of a Linear layer's tensors; only a quantised layer has scales.
inline constexpr const char* kWeight = "weight";
inline constexpr const char* kScales = "scales";

// The name of a layer's tensor in a module's state: "LAYER.weight", or "weight" if the layer is the module itself.
inline std::string entry_of(const std::string& layer, const std::string& tensor) {
  return layer.empty() ? tensor : layer + "." + tensor;
}

// A Linear layer's weight as weight-only int8.
struct QuantizedWeight {
  at::Tensor codes;   // int8 [out, in]
  at::Tensor scales;  // [out], of the weight's dtype
};

// Quantises a floating-point weight [out, in], in >= 1, on its device, without a gradient. Codes and scales are the
// results of dynamically_quantize_per_channel (-128..127) for its float32 values. Throws c10::TypeError for another
// dtype.
QuantizedWeight quantize_weight(const at::Tensor& weight);

// The shape and the dtype of a WeightOnlyInt8Linear.
struct WeightOnlyInt8LinearOptions {
  int64_t in_features = 0;                   // >= 0
  int64_t out_features = 0;                  // >= 0
  bool bias = true;                          // whether there is a bias
  at::ScalarType scales_dtype = at::kFloat;  // of scales and bias; the output has the input's dtype
};

// A Linear layer for models that are no longer trained: x [..., in] -> [..., out] is
// narrowcast::weight_only_int8_linear(x, weight, scales, bias). It has the buffers `weight` int8 [out, in] and `scales`
// [out], and the parameter `bias` [out] (undefined without a bias). A new layer has weights 0, scales 1 and bias 0, to
// be filled from a state dict.
class WeightOnlyInt8LinearImpl : public torch::nn::Cloneable<WeightOnlyInt8LinearImpl> {
 public:
  // Throws c10::ValueError for a negative size, c10::TypeError for scales that are not floating.
  explicit WeightOnlyInt8LinearImpl(const WeightOnlyInt8LinearOptions& options);

  // Makes a layer with the linear layer's quantised weight, scales of the weight's dtype, and the same bias.
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
// models::LinearImpl whose forward calls LinearImpl::forward. Any other class derived from torch::nn::Linear is an
// error: both functions throw a c10::ValueError that names the submodule, before anything is changed.
class WeightOnlyInt8QuantHandler {
 public:
  // Throws c10::ValueError if `module` is null.
  explicit WeightOnlyInt8QuantHandler(std::shared_ptr<torch::nn::Module> module);

  // Contains, for every Linear layer `name` of the tree, `name.weight` int8 [out, in] and `name.scales` [out] of the
  // weight's dtype, both on the CPU. All other entries are the module's tensors, without a gradient. The module does
  // not change.
  StateDict create_quantized_state_dict() const;

  // Converts the module's Linear layers in place and returns the module. A models::Linear becomes int8 itself; a
  // torch::nn::Linear in a Sequential is replaced by a WeightOnlyInt8Linear. The names of tensors are those of the
  // state dict above. Throws a c10::ValueError that names the submodule if there is a torch::nn::Linear anywhere else.
  std::shared_ptr<torch::nn::Module> convert_for_runtime();

 private:
  std::shared_ptr<torch::nn::Module> module_;
};

// A Linear layer that is not converted.
struct FloatLayer {
  std::string name;    // in the module, e.g. "self_attn.out_proj"; "" is the module itself
  std::string reason;  // e.g. "'self_attn' uses its weight directly"
};

// Quantises the Linear layers of TorchScript modules, scripted or traced. A Linear layer is an instance of
// torch.nn.Linear or of a class that derives from it or computes the same. That is a submodule with a parameter or
// buffer `weight` [out, in] by which its methods multiply (torch.nn.functional.linear); they may also do other things.
class ScriptWeightOnlyInt8QuantHandler {
 public:
  explicit ScriptWeightOnlyInt8QuantHandler(torch::jit::Module module);

  // Has the same entries as above, for every Linear layer except those of layers_that_stay.
  StateDict create_quantized_state_dict() const;

  // The Linear layers that cannot be converted. Either their weight has other uses than their own products, for
  // instance in the module around them, or they share a TorchScript type with such a layer. Also modules of a Linear
  // layer's type whose own weight is complex or not a matrix.
  std::vector<FloatLayer> layers_that_stay() const;

  // A copy of the module whose other Linear layers multiply by narrowcast::weight_only_int8_linear. It shares all other
  // tensors with the original, which does not change. It can be saved, and loaded by programs that load
  // libnarrowcast_ops. Throws a c10::ValueError that names the submodule if there are hooks around a forward
  // (register_forward_hook): copies do not keep them.
  torch::jit::Module convert_for_runtime() const;

 private:
  torch::jit::Module module_;
};

}  // namespace narrowcast::models
