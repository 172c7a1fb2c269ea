// A TorchScript module as a model that can be evaluated.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <string>

#include <narrowcast/model.h>

namespace narrowcast::evaluation {

// The module's forward takes what a bundled model takes (tokens, int64 [B, T], or images, uint8 [B, height, width])
// and returns a float tensor of logits [B, T, vocabulary] or [B, classes].
class ScriptModel : public models::Model {
 public:
  // `name` is for messages: the file's path.
  ScriptModel(torch::jit::Module module, std::string name);

  // forward(inputs). Throws c10::ValueError naming the module if it returns anything but logits of that shape, or
  // what the module itself threw.
  at::Tensor logits(const at::Tensor& inputs);

  // targets int64 [B, T] or [B]: mean cross entropy in nats. Also an error if a target has no logit.
  at::Tensor forward(const models::Batch& batch) override;

  // None: a TorchScript module does not say how it was made.
  models::ModelOptions options() const override { return {}; }

 private:
  torch::jit::Module module_;
  std::string name_;
};

}  // namespace narrowcast::evaluation
