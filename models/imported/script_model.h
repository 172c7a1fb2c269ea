// A TorchScript module as a model: its code returns the loss, or predictions from which the loss is computed.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <exception>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/imported/imported_model.h"
#include "models/imported/script_state.h"

namespace narrowcast::models {

// Settings that a module does not contain.
struct ScriptOptions {
  std::string name;                          // its file's path, for messages
  std::optional<Loss> loss = {};             // of its predictions; std::nullopt: it returns the loss itself
  std::vector<std::string> vocabulary = {};  // of a text model, if its file contains it
};

// Whether the module has forward(inputs, targets), which returns the loss, rather than forward(inputs), which returns
// predictions. Only arguments without a default count. Throws a c10::ValueError with `name` and the signature for any
// other forward.
bool returns_loss(const torch::jit::Module& module, const std::string& name);

// Its parameters and buffers are the module's, under the module's names; if a tensor has several names, under the
// first. The module is shared. When it runs, it is set to this model's mode, training or evaluation.
//
// The module is interpreted operator by operator, as it is written. After the first pass TorchScript's executor would
// replace operators by others that round differently, and a training that resumes begins with a first pass again.
class ScriptModel : public ImportedModel {
 public:
  // Throws c10::ValueError like returns_loss, and for a loss that is missing or has no effect.
  ScriptModel(torch::jit::Module module, ScriptOptions options);

  // The result of forward(inputs), a float tensor. Throws a c10::ValueError that names the module for any other result,
  // and for an error that the module throws, with that error's text.
  at::Tensor predictions(const at::Tensor& inputs);

  at::Tensor logits(const at::Tensor& inputs) override;

  // Takes batches of the data set. Also throws c10::ValueError if predictions and targets do not match, or if the loss
  // is not a float scalar.
  at::Tensor forward(const Batch& batch) override;

  // With the loss kCrossEntropy, also gives the share of targets for which the likeliest class is the right one.
  Evaluated evaluate(const Batch& batch) override;

  // The weights of torch.nn.Embedding. The module does not declare its output layer.
  std::vector<at::Tensor> embeddings_and_heads() const override;

  std::map<std::string, std::string> aliases() const override { return state_->aliases(); }

 private:
  // Logits by rows, and the target of each.
  struct ClassRows {
    at::Tensor logits;   // float32 [rows, classes]
    at::Tensor targets;  // int64 [rows]
  };

  bool has_label_smoothing() const override { return loss() == Loss::kCrossEntropy; }
  std::string reason_without_gradients() const override {
    return " (torch.jit.freeze turns parameters into constants)";
  }
  std::string reason_of(const std::exception& error) const override;
  at::Tensor run(std::vector<c10::IValue> arguments);
  ClassRows class_rows(const Batch& batch);
  at::Tensor loss_of_values(const Batch& batch);

  torch::jit::Module module_;
  std::optional<ScriptState> state_;  // made after the options are checked
  std::optional<bool> mode_;          // the mode that the module has been set to: whether it is training
};

}  // namespace narrowcast::models
