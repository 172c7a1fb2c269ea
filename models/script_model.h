// A TorchScript module as a model: its code returns the loss, or predictions from which the loss is computed.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/model.h>
#include "models/script_state.h"

namespace narrowcast::models {

// Mean losses of predictions. Shapes are compared without their dimensions of size 1.
enum class Loss {
  kCrossEntropy,   // In nats, of float logits [B, ..., classes] and int64 targets [B, ...] in 0..classes-1.
  kMse,            // (prediction - target)^2, of float predictions and targets of one shape.
  kBceWithLogits,  // Binary cross entropy in nats, of float logits and targets in 0..1 of one shape.
};

// "cross_entropy", "mse" or "bce_with_logits"; throws c10::ValueError for anything else.
Loss parse_loss(const std::string& name);

// The name of a loss, and all names as text for messages.
std::string to_string(Loss loss);
std::string loss_names();

// Settings that a module does not contain.
struct ScriptOptions {
  std::string name;               // its file's path, for messages
  std::optional<Loss> loss = {};  // of its predictions; std::nullopt: it returns the loss itself
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
class ScriptModel : public Model {
 public:
  // Throws c10::ValueError like returns_loss, and for a loss that is missing or has no effect.
  ScriptModel(torch::jit::Module module, ScriptOptions options);

  // The result of forward(inputs), a float tensor. Throws a c10::ValueError that names the module for any other result,
  // and for an error that the module throws, with that error's text.
  at::Tensor predictions(const at::Tensor& inputs);

  // The same for results of shape [B, ..., classes], where B is the inputs' first dimension.
  at::Tensor logits(const at::Tensor& inputs);

  // Takes batches of the data set. Also throws c10::ValueError if predictions and targets do not match, or if the loss
  // is not a float scalar.
  at::Tensor forward(const Batch& batch) override;

  // With the loss kCrossEntropy, also gives the share of targets for which the likeliest class is the right one.
  Evaluated evaluate(const Batch& batch) override;

  std::map<std::string, std::string> aliases() const override { return state_->aliases(); }

  // Empty: a module does not record how it was made.
  ModelOptions options() const override { return {}; }

  // The loss of its predictions; std::nullopt: the module returns the loss itself.
  const std::optional<Loss>& loss() const { return options_.loss; }

  // Declares that all targets are in 0..classes-1. Then logits for fewer classes are an error in every pass, on any
  // device. Without this call every batch is checked, on the CPU only, and the error names its first target without
  // logits.
  void expect_classes(int64_t classes) { expected_classes_ = classes; }

  // Throws c10::ValueError if a target is invalid for the loss. The targets are on the CPU. forward does this check
  // itself for targets on the CPU. It does not check a GPU's targets, as it would have to wait for them: call this
  // function before they are copied there.
  void check_targets(const at::Tensor& targets) const;

  // Runs forward and backward passes without keeping gradients. Returns the names of the parameters that require a
  // gradient and got no gradient. Throws a c10::ValueError that names the module if it cannot be trained:
  // - no parameter requires a gradient, or the loss depends on no such parameter;
  // - a parameter that requires a gradient is not float32, or has a sparse gradient;
  // - a pass fails.
  std::vector<std::string> check_trains(const Batch& batch);

 private:
  // Logits by rows, and the target of each.
  struct ClassRows {
    at::Tensor logits;   // float32 [rows, classes]
    at::Tensor targets;  // int64 [rows]
  };

  bool has_label_smoothing() const override { return options_.loss == Loss::kCrossEntropy; }
  at::Tensor run(std::vector<c10::IValue> arguments);
  ClassRows class_rows(const Batch& batch);
  void check_classes(const ClassRows& rows) const;
  at::Tensor loss_of_values(const Batch& batch);

  torch::jit::Module module_;
  const ScriptOptions options_;
  std::optional<ScriptState> state_;  // made after the options are checked
  std::optional<bool> mode_;          // the mode that the module has been set to: whether it is training
  std::optional<int64_t> expected_classes_;
};

}  // namespace narrowcast::models
