// The properties of each bundled model: one row of a table, so that no other code needs to know the models by name. A
// new model needs its own .h and .cpp, and a row in model_table.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/model.h>

namespace narrowcast::models {

// The kind of data in a model's batches.
enum class DataKind {
  kNone,    // The model has a fixed batch: its gradients can be verified, but there is nothing to learn.
  kText,    // Tokens, e.g. characters; the model has the options vocabulary_size and context.
  kImages,  // Samples with a target each, as pixels and classes; the model has the options inputs and classes.
  kGiven,   // Text or images, as the data files determine: models from Python do not declare what they learn from.
};

// The suffix of TorchScript modules' files, and the model name that all modules share. The same of model packages.
inline constexpr const char* kScriptSuffix = ".pt";
inline constexpr const char* kScript = "torchscript";
inline constexpr const char* kPackageSuffix = ".pt2";
inline constexpr const char* kPackage = "model_package";

// A model.
struct ModelRow {
  std::string name;
  std::function<std::shared_ptr<Model>(const ModelOptions&)> create;
  std::function<int64_t(const ModelOptions&)> count_parameters;
  DataKind data = DataKind::kNone;

  // The names of its options.
  std::vector<std::string> options = {};

  // Whether other programs can use it as GPT-2: its files have Hugging Face's layout, and its vocabulary may be larger
  // than the data's, as a padded one is.
  bool is_gpt2 = false;

  bool has_option(const std::string& option) const;

  // Whether a model of that size fits data with `needed` inputs, classes or vocabulary entries: the two must be equal.
  // A vocabulary that may be padded can also be larger.
  bool fits(int64_t size, int64_t needed) const;

  // Whether it can be trained and evaluated.
  bool learns() const { return data != DataKind::kNone; }
};

// All rows, sorted by name.
const std::vector<ModelRow>& model_rows();

// The row of that name. Throws a c10::ValueError that lists the known names for an unknown name.
const ModelRow& model_row(const std::string& name);

// Whether the name of a model is the path of a TorchScript module, of a model package, or of either.
bool is_script(const std::string& name);
bool is_package(const std::string& name);
bool is_imported(const std::string& name);

// The same as model_row for a bundled model. The path of a TorchScript module or a package gives the row that all of
// them share. That row cannot make a model: ScriptModel and PackageModel (models/imported/) do.
const ModelRow& any_model_row(const std::string& name);

// The names of the bundled models that can be trained, and of the others, sorted.
std::vector<std::string> learning_models();
std::vector<std::string> fixed_models();

}  // namespace narrowcast::models
