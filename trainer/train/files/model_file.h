// A trained model in one safetensors file, from which alone it can be evaluated and sampled.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/model.h>

namespace narrowcast::files {

// The quantisation of models::WeightOnlyInt8QuantHandler.
inline constexpr const char* kWeightOnlyInt8 = "weight_only_int8";

// A model with what is needed to use it.
struct SavedModel {
  std::string name;  // as in models::create_model
  std::shared_ptr<models::Model> model;
  // The text of each token, in the tokens' order; empty for models that are not over text. If the model
  // has an option vocabulary_size, a vocabulary that is not empty has that many entries.
  std::vector<std::string> vocabulary;
  std::string quantization = {};  // kWeightOnlyInt8 if its Linear layers are converted, else empty
};

// Writes model.safetensors: every parameter and buffer under its name in the module (a weight that is
// registered twice only once, under its first name) and this metadata, each value a string:
//   format_version  "1"
//   model           the model's name
//   options         its options, a JSON object
//   vocabulary      JSON array of strings
//   linear_layers   names of its Linear layers, JSON array of strings
//   quantization    "weight_only_int8"; absent in a model of floats
// As write_safetensors: the file appears as a whole or not at all. Throws c10::ValueError naming the path.
void save_model(const std::string& path, const SavedModel& saved);

// Reads such a file and makes its model (which draws from LibTorch's default generator, as every new model
// does). Throws c10::ValueError if the file cannot be read, and CorruptInputError naming the path and what is
// wrong if it is no such file, or its names, shapes or dtypes are not the model's.
SavedModel load_model(const std::string& path);

// Parameters and buffers by name; of a tensor registered under several names only the first.
std::map<std::string, at::Tensor> state_of(const torch::nn::Module& module);

// Names of the Linear layers in `module`, in order of registration, e.g. "blocks.0.mlp_input".
std::vector<std::string> linear_layer_names(const torch::nn::Module& module);

}  // namespace narrowcast::files
