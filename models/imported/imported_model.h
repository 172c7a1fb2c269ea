// The base class of models from PyTorch: TorchScript modules and compiled packages. Such a model may not fit the data.
// Its batches are therefore checked.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <exception>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/model.h>

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

// A model from a file. Its messages begin with the file's path.
class ImportedModel : public Model {
 public:
  // The loss that is computed from the model's predictions; std::nullopt: the model computes another loss itself.
  const std::optional<Loss>& loss() const { return loss_; }

  // The predictions for inputs, of shape [B, ..., classes], where B is the inputs' first dimension. Throws a
  // c10::ValueError that names the file for other results.
  virtual at::Tensor logits(const at::Tensor& inputs) = 0;

  // The characters of a text model, in the order of their numbers; empty if the file does not contain them.
  const std::vector<std::string>& vocabulary() const { return vocabulary_; }

  // The number of tokens in each sequence, if the model takes only sequences of one length.
  virtual std::optional<int64_t> context() const { return std::nullopt; }

  // The number of classes for which it returns logits, if the file contains it. For a text model this is the size of
  // the vocabulary.
  virtual std::optional<int64_t> classes() const { return std::nullopt; }

  // Empty: the file does not record how the model was made.
  ModelOptions options() const override { return {}; }

  // Declares that all targets are in 0..classes-1. Then logits for fewer classes are an error in every pass, on any
  // device. Without this call every batch is checked, on the CPU only, and the error names its first target without
  // logits.
  void expect_classes(int64_t classes) { expected_classes_ = classes; }

  // Throws c10::ValueError if a target is invalid for the loss. The targets are on the CPU. forward does this check
  // itself for targets on the CPU. It does not check a GPU's targets, as it would have to wait for them: call this
  // function before they are copied there.
  void check_targets(const at::Tensor& targets) const;

  // Runs forward and backward passes without keeping gradients. Returns the names of the parameters that require a
  // gradient and got no gradient. Throws a c10::ValueError that names the file if the model cannot be trained:
  // - no parameter requires a gradient, or the loss depends on no such parameter;
  // - a parameter that requires a gradient is not float32, or has a sparse gradient;
  // - a pass fails.
  std::vector<std::string> check_trains(const Batch& batch);

 protected:
  ImportedModel(const char* kind, std::string path, std::optional<Loss> loss, std::vector<std::string> vocabulary);

  // The file's path.
  const std::string& path() const { return path_; }

  // Throws c10::ValueError unless all targets have logits, as far as they are checked (expect_classes).
  void check_classes(int64_t classes, const at::Tensor& targets) const;

 private:
  // Why no parameter may require a gradient, for the end of an error; may be empty.
  virtual std::string reason_without_gradients() const { return ""; }

  // The reason in an error of the model's own code, in one line.
  virtual std::string reason_of(const std::exception& error) const;

  const std::string path_;
  const std::optional<Loss> loss_;
  const std::vector<std::string> vocabulary_;
  std::optional<int64_t> expected_classes_;
};

// The share of rows of logits [rows, classes] whose likeliest class is the target's [rows]; a float64 scalar.
at::Tensor accuracy_of(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace narrowcast::models
