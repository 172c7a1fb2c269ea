// Trained models in safetensors files: a bundled model, which can be evaluated and sampled from its file alone, and the
// tensors of a TorchScript module.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/model.h>
#include "models/quantization/weight_only_int8.h"
#include "models/table/model_table.h"

namespace narrowcast::files {

// The suffixes of files with a bundled model, with a TorchScript module and with a model package.
inline constexpr const char* kModelSuffix = ".safetensors";
using models::kPackageSuffix;
using models::kScriptSuffix;

// The path's suffix, one of these. Throws c10::ValueError naming the option and the path if it has none.
std::string model_suffix(const std::string& option, const std::string& path);

// The quantisation of models::WeightOnlyInt8QuantHandler.
inline constexpr const char* kWeightOnlyInt8 = "weight_only_int8";

// A model with everything needed to use it.
struct SavedModel {
  // As in models::create_model. For a models::ImportedModel it is models::kScript or models::kPackage: files of these
  // are only written.
  std::string name;
  std::shared_ptr<models::Model> model;
  // The text of each token, in the tokens' order; empty for models that are not over text. If the model has an option
  // vocabulary_size, a non-empty vocabulary has that number of entries; for GPT-2 it may have fewer.
  std::vector<std::string> vocabulary;
  std::string quantization = {};  // kWeightOnlyInt8 if its Linear layers are converted, else empty
};

// Writes model.safetensors: every parameter and buffer that the Python class's state_dict() has, under its name in the
// module, and the metadata below. A tensor that is registered twice is written only once, under its first name, except
// that a models::ImportedModel's is written under each name. Each value of the metadata is a string:
//
//   format_version  "1"
//   model           the model's name
//   options         its options, a JSON object
//   vocabulary      JSON array of strings
//   linear_layers   names of its Linear layers, JSON array of strings
//   quantization    "weight_only_int8"; absent in a model of floats
//   format          "pt"; only for GPT-2 in floats, since Hugging Face's transformers require it
//
// GPT-2 in floats (models::ModelRow) has the names and shapes of gpt2_layout.h. As with write_safetensors, the file
// appears as a whole or not at all. Throws c10::ValueError naming the path.
void save_model(const std::string& path, const SavedModel& saved);

// Reads such a file and makes its model, which draws from LibTorch's default generator, as every new model does. Throws
// c10::ValueError if the file cannot be read or contains the tensors of a TorchScript module or a package, whose code
// is in another file; for a package the message ends with the advice. Throws CorruptInputError naming the path and the
// error if it is not such a file, or its names, shapes or dtypes are not the model's.
SavedModel load_model(const std::string& path, const std::string& advice_for_package = "use the *.pt2");

// The initial state of a training, instead of random parameters.
struct InitialState {
  std::string path;                          // as it was given: a file, an index or a folder (weight_files.h)
  std::vector<std::string> files = {};       // the files that were read
  models::ModelOptions options = {};         // of its model, as far as the file contains them
  std::vector<std::string> vocabulary = {};  // as in SavedModel
  models::StateDict tensors = {};            // by their names in the file
  bool has_gpt2_layout = false;              // in the layout of gpt2_layout.h, without its extras
  bool has_metadata = false;                 // narrowcast wrote the file, with all tensors of the model
  bool is_of_other_kind = false;             // a package's file for a TorchScript module, or the reverse
};

// Reads weights for a training of the model of that name (models::any_model_row), in floats. The source is a file of
// save_model, whose metadata contain options and vocabulary, or only tensors, also in several files (read_weights). For
// GPT-2 they may be Hugging Face's, whose shapes determine all options except the number of heads. They may also be
// those of char_gpt, which consists of the same modules. For a TorchScript module they may be a package's, and the
// reverse: both have the names of one class.
//
// Throws as read_weights does. Throws c10::ValueError naming `option` and the path if the file is quantised
// or contains another model, and CorruptInputError naming the path and the error in its content.
InitialState read_initial_state(const std::string& path, const std::string& model,
                                const std::string& option = "init_from");

// The options of a model with this initial state; `given` are the requested ones. Throws c10::ValueError naming an
// option that the file contradicts, and both values. The context of GPT-2 may be shorter than the file's.
models::ModelOptions options_with(const InitialState& initial, const models::ModelOptions& given);

// Throws CorruptInputError naming the path if a model with these options, all of which are known, would have far more
// parameters than the file. The model itself is not made. Throws c10::ValueError as models::count_parameters does.
void check_size(const InitialState& initial, const std::string& model, const models::ModelOptions& options);

// Copies the state into the model's parameters and buffers. F16 and BF16 become float32. GPT-2's positions are cut to
// the model's number. A file without narrowcast's metadata, or of a package for a TorchScript module, may lack buffers,
// which a class registered with persistent=False: they keep the model's values. Returns the names of such buffers.
//
// Throws CorruptInputError naming the path and a tensor that is missing, does not belong to the model, has another
// shape or dtype, or differs from itself under another name; then nothing is changed.
std::vector<std::string> load_initial_state(const InitialState& initial, models::Model& model);

// Parameters and buffers by name; a tensor registered under several names has only the first.
models::StateDict state_of(const torch::nn::Module& module);

// Names of the Linear layers in `module`, in order of registration, e.g. "blocks.0.mlp_input".
std::vector<std::string> linear_layer_names(const torch::nn::Module& module);

}  // namespace narrowcast::files
