// A TorchScript module as a model: its own code gives the loss, or the predictions of which the loss is made.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/model.h>
#include "models/script_state.h"

namespace narrowcast::models {

// What makes a mean loss of predictions. Shapes are compared without their dimensions of size 1.
enum class Loss {
  kCrossEntropy,   // In nats, of float logits [B, ..., classes] and int64 targets [B, ...] in 0..classes-1.
  kMse,            // (prediction - target)^2, of float predictions and targets of one shape.
  kBceWithLogits,  // Binary cross entropy in nats, of float logits and targets in 0..1 of one shape.
};

// "cross_entropy", "mse" or "bce_with_logits"; anything else throws c10::ValueError.
Loss parse_loss(const std::string& name);

// The name of it, and all names for people.
std::string to_string(Loss loss);
std::string loss_names();

// What a module does not say itself.
struct ScriptOptions {
  std::string name;               // its file's path, for messages
  std::optional<Loss> loss = {};  // of its predictions; none: it returns the loss itself
};

// Whether forward(inputs, targets) returns the loss, rather than forward(inputs) predictions: by its arguments without
// a default. Throws c10::ValueError, naming `name` and the signature, if it takes neither.
bool returns_loss(const torch::jit::Module& module, const std::string& name);

// Its parameters and buffers are the module's, under the names that the module gives them; of a tensor with several
// names the first counts. The module is shared, and gets this model's mode, training or evaluation, when it runs.
//
// The module computes operator by operator, as it is written. TorchScript's executor would exchange operators after the
// first pass for others that round otherwise, and a training that resumes begins with a first pass again.
class ScriptModel : public Model {
 public:
  // Throws c10::ValueError as returns_loss does, and for a loss that is missing or has no effect.
  ScriptModel(torch::jit::Module module, ScriptOptions options);

  // What forward(inputs) returns, a float tensor. Throws c10::ValueError naming the module for anything else, and with
  // what the module itself threw.
  at::Tensor predictions(const at::Tensor& inputs);

  // The same of a shape [B, ..., classes], B being that of the inputs.
  at::Tensor logits(const at::Tensor& inputs);

  // Inputs and targets as the data set gives them. Also an error if predictions and targets do not fit each other, or
  // the loss is no float scalar.
  at::Tensor forward(const Batch& batch) override;

  // With the loss kCrossEntropy it counts for how many targets the likeliest class is the right one.
  Evaluated evaluate(const Batch& batch) override;

  std::map<std::string, std::string> aliases() const override { return state_->aliases(); }

  // None: a module does not say how it was made.
  ModelOptions options() const override { return {}; }

  // What makes the loss of its predictions; none: it returns the loss itself.
  const std::optional<Loss>& loss() const { return options_.loss; }

  // Says that all targets are in 0..classes-1. Then logits for fewer classes are an error of every pass, on any device;
  // otherwise each batch is looked through, on the CPU alone, and names its first target without logits.
  void expect_classes(int64_t classes) { expected_classes_ = classes; }

  // Throws c10::ValueError for a target that the loss is not made for, of targets on the CPU. forward looks at those
  // itself; to ask a GPU would be to wait for it, so those that go there are to be looked at before.
  void check_targets(const at::Tensor& targets) const;

  // Runs forward and backward passes without keeping gradients. Returns the names of the parameters that require a
  // gradient and got none. Throws c10::ValueError naming the module if it cannot be trained: no parameter requires a
  // gradient or the loss depends on none, one that does is not float32 or its gradient is sparse, or a pass fails.
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
  std::optional<ScriptState> state_;  // made when the options are known to fit
  std::optional<bool> mode_;          // that the module was given: whether it is in training mode
  std::optional<int64_t> expected_classes_;
};

}  // namespace narrowcast::models
