// What the trainer asks of a model.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include <narrowcast/export.h>
#include <narrowcast/generation.h>

namespace narrowcast::models {

// One micro-batch, as the data set of the model's kind makes it. The model's `forward(const Batch&)` says shapes and
// dtypes.
struct Batch {
  at::Tensor inputs;   // e.g. int64 [B, T] tokens of CharGpt, uint8 [B, ...] pixels of Mlp
  at::Tensor targets;  // e.g. int64 [B, T] the tokens behind each, int64 [B] classes
};

// What shapes a model, by the names that it gives its options: whole numbers.
using ModelOptions = std::map<std::string, int64_t>;

// What a model does in training mode alone. It is no option: it changes neither the parameters nor what they are worth.
struct Regularization {
  double dropout = 0;          // the share of what it computes that is left out at random, 0 <= dropout < 1
  double label_smoothing = 0;  // the share of a target's probability that is spread over all classes, in the same range
};

// What a model is worth on a batch.
struct Evaluated {
  at::Tensor loss;           // as forward gives it
  at::Tensor accuracy = {};  // float64 scalar: the share of right answers; undefined where a model counts none
};

// A model that can be trained: its forward gives the loss.
class NARROWCAST_EXPORT Model : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  // Mean loss over the batch, a scalar. Each model states the shapes and dtypes it takes.
  virtual at::Tensor forward(const Batch& batch) = 0;

  // The loss and, of a model that counts them, how many of its answers are right. Takes what forward takes.
  virtual Evaluated evaluate(const Batch& batch) { return {.loss = forward(batch)}; }

  // A language model's context and next-token logits, for generate(). Valid as long as the model. Empty: the model
  // cannot generate text.
  virtual std::optional<NextToken> next_token() { return std::nullopt; }

  // Further names of a parameter or buffer, each with the name under which the module has it.
  virtual std::map<std::string, std::string> aliases() const { return {}; }

  // Every option with its value, such that create_model(name, options()) makes a model of the same shape.
  virtual ModelOptions options() const = 0;

  // Sets what is done in training mode from now on. What dropout leaves out is drawn from LibTorch's default generator
  // of the device. Throws c10::ValueError naming a share that is out of its range, or one above 0 of what the model
  // does not have.
  void regularize(const Regularization& regularization);

 protected:
  // The shares at present: 0 in evaluation mode.
  double dropout() const { return is_training() ? regularization_.dropout : 0; }
  double label_smoothing() const { return is_training() ? regularization_.label_smoothing : 0; }

 private:
  virtual bool has_dropout() const { return false; }
  virtual bool has_label_smoothing() const { return false; }

  Regularization regularization_;
};

}  // namespace narrowcast::models
