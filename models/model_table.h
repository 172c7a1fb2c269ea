// What the project knows of each bundled model: one row of a table, which all others ask, so that none of them needs to
// know the models by their names. Adding a model is its own .h and .cpp, and its row in models.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/model.h>

namespace narrowcast::models {

// What a model's batches are made of.
enum class DataKind {
  kNone,    // The model brings a batch of its own: its gradients can be verified, but there is nothing to learn.
  kText,    // Tokens, of characters or of anything; the model has the options vocabulary_size and context.
  kImages,  // Samples with a target each, as pixels and classes; the model has the options inputs and classes.
  kGiven,   // One of these, as the files say that are given: a TorchScript module says nothing of what it takes.
};

// How the file of a TorchScript module is named, and what all modules are called as models.
inline constexpr const char* kScriptSuffix = ".pt";
inline constexpr const char* kScript = "torchscript";

// A model.
struct ModelRow {
  std::string name;
  std::function<std::shared_ptr<Model>(const ModelOptions&)> create;
  std::function<int64_t(const ModelOptions&)> count_parameters;
  DataKind data = DataKind::kNone;

  // The names of its options.
  std::vector<std::string> options = {};

  // Whether it is GPT-2 for others, too: its files have the layout of Hugging Face's, and its vocabulary may be larger
  // than the data's, as a padded one is.
  bool is_gpt2 = false;

  bool has_option(const std::string& option) const;

  // Whether a model of that size can do with data that need `needed`: so many inputs, classes or entries of a
  // vocabulary. They are equal; a vocabulary that may be padded can also be larger.
  bool fits(int64_t size, int64_t needed) const;

  // Whether it can be trained, and evaluated.
  bool learns() const { return data != DataKind::kNone; }
};

// The row of that name. Throws c10::ValueError for an unknown name; it lists the known ones.
const ModelRow& model_row(const std::string& name);

// Whether the name of a model is the path of a TorchScript module.
bool is_script(const std::string& name);

// The same as model_row for a bundled model; for the path of a TorchScript module the row that all modules share, which
// makes none: ScriptModel (script_model.h) does.
const ModelRow& any_model_row(const std::string& name);

// The names of the bundled models that can be trained, and of those that cannot, sorted.
std::vector<std::string> learning_models();
std::vector<std::string> fixed_models();

}  // namespace narrowcast::models
