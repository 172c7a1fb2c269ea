// The interface of models to the trainer.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/export.h>
#include <narrowcast/generation.h>

namespace narrowcast::models {

// One micro-batch of the data set for the model's kind of data. Shapes and dtypes are documented at each model's
// `forward(const Batch&)`.
struct Batch {
  at::Tensor inputs;   // e.g. int64 [B, T] tokens for CharGpt, uint8 [B, ...] pixels for Mlp
  at::Tensor targets;  // e.g. int64 [B, T] the token after each, int64 [B] classes
};

// The shape of a model: whole numbers by the names of the model's options.
using ModelOptions = std::map<std::string, int64_t>;

// Settings that have an effect in training mode only. They are not options: they change neither the shape nor
// evaluation.
struct Regularization {
  double dropout = 0;          // the share of values that is left out at random, 0 <= dropout < 1
  double label_smoothing = 0;  // the share of a target's probability that is spread over all classes, in the same range
};

// The evaluation of a model on a batch.
struct Evaluated {
  at::Tensor loss;           // as returned by forward
  at::Tensor accuracy = {};  // float64 scalar: the share of right answers; undefined if the model does not count them
};

// A model that can be trained: its forward returns the loss.
class NARROWCAST_EXPORT Model : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  // Mean loss over the batch, a scalar. Each model documents its shapes and dtypes.
  virtual at::Tensor forward(const Batch& batch) = 0;

  // The loss and, if the model counts them, the share of right answers. Takes the same batches as forward.
  virtual Evaluated evaluate(const Batch& batch) { return {.loss = forward(batch)}; }

  // The numbers of samples that a training step and evaluate take at once, as far as they are known.
  struct BatchSizes {
    int64_t least = 1;
    int64_t most = std::numeric_limits<int64_t>::max();
  };
  virtual BatchSizes trained_sizes() const { return {}; }
  virtual BatchSizes evaluated_sizes() const { return {}; }

  // A language model's context and next-token logits, for generate(). Valid as long as the model exists. std::nullopt:
  // the model cannot generate text.
  virtual std::optional<NextToken> next_token() { return std::nullopt; }

  // Lets backward passes also compute the loss, from the next forward pass on. Until then the loss is NaN, and
  // nothing but a multiplication by a constant may use it. It makes sense for a model that computes loss and gradients
  // together: gradients are then complete one after another, so that their exchange overlaps with computing, instead of
  // all when the backward pass begins. Parameters and buffers must not change until backward() returns, for example in
  // a hook of a gradient. The autograd graph does not contain the parameters: with find_unused_parameters or
  // static_graph, the first forward pass of DistributedDataParallel throws c10::ValueError. Other models ignore it.
  virtual void compute_loss_in_backward() {}

  // Additional names of a parameter or buffer, each with the name under which the module has it.
  virtual std::map<std::string, std::string> aliases() const { return {}; }

  // The names of buffers that the Python class of the model registered with persistent=False: its state_dict() lacks
  // them.
  virtual std::vector<std::string> transient_buffers() const { return {}; }

  // The matrices that belong to no hidden layer: embeddings and output layers. Optimizers for hidden layers, such as
  // Muon, are not meant for them. A model from a file may not know its output layer.
  virtual std::vector<at::Tensor> embeddings_and_heads() const { return {}; }

  // Every option with its value: create_model(name, options()) makes a model of the same shape.
  virtual ModelOptions options() const = 0;

  // Whether forward and evaluate announce each layer, see set_layer_gate.
  virtual bool announces_layers() const { return false; }
  using LayerGate = std::function<void(const torch::nn::Module& layer)>;  // `layer`: a submodule of the model
  // Calls `gate` with each layer before its parameters are read. Until then they may still be written, for instance by
  // an exchange of parameters. An empty gate is none. Throws a c10::ValueError if the model does not announce its
  // layers.
  void set_layer_gate(LayerGate gate);

  // Sets the regularization in training mode from now on. Dropout draws from LibTorch's default generator of the
  // device. Throws a c10::ValueError that names a share if it is out of its range, or above 0 though the model does not
  // support it.
  void regularize(const Regularization& regularization);

 protected:
  // The current shares: 0 in evaluation mode.
  double dropout() const { return is_training() ? regularization_.dropout : 0; }
  double label_smoothing() const { return is_training() ? regularization_.label_smoothing : 0; }

  // Models call it with each layer before they read its parameters.
  void announce(const torch::nn::Module& layer) const {
    if (layer_gate_) layer_gate_(layer);
  }

 private:
  virtual bool has_dropout() const { return false; }
  virtual bool has_label_smoothing() const { return false; }

  Regularization regularization_;
  LayerGate layer_gate_;
};

}  // namespace narrowcast::models
