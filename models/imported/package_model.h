// A model package as a model: its compiled training step gives the loss and all gradients at once.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/imported/compiled_graph.h"
#include "models/imported/imported_model.h"
#include "models/imported/package_file.h"

namespace narrowcast::models {

// Its parameters and buffers have the names that they have in the Python module, and the values of the package's
// weights. In training mode, forward runs the compiled training step: the backward pass from its loss only hands out
// the gradients that were computed then, unless the backward pass runs the step (compute_loss_in_backward). The model
// must live until that pass has ended.
class PackageModel : public ImportedModel {
 public:
  // Loads the code of the package, which messages call `path`. Throws as CompiledGraph does.
  PackageModel(Package package, const std::string& path);

  const PackageManifest& manifest() const { return manifest_; }

  // The loss of the batch. In training mode it has gradients, if gradients are enabled, and buffers change. Throws a
  // c10::ValueError that names the package if the batch has other shapes or dtypes than the package, too few or too
  // many samples, or invalid targets.
  at::Tensor forward(const Batch& batch) override;

  // In evaluation mode. With the loss kCrossEntropy, also gives the share of targets for which the likeliest class is
  // the right one.
  Evaluated evaluate(const Batch& batch) override;

  at::Tensor logits(const at::Tensor& inputs) override;

  std::optional<int64_t> context() const override;
  std::optional<int64_t> classes() const override;
  BatchSizes trained_sizes() const override;
  BatchSizes evaluated_sizes() const override;

  void compute_loss_in_backward() override { is_deferred_ = true; }

  std::map<std::string, std::string> aliases() const override { return manifest_.tied; }
  std::vector<std::string> transient_buffers() const override;

 private:
  void register_state(const std::map<std::string, at::Tensor>& weights);
  // Whether targets are classes, rather than for instance the probabilities of all classes.
  bool has_classes() const;
  void check_batch(const Batch& batch, const PackagedGraph& graph) const;
  std::vector<at::Tensor> run(const CompiledGraph& graph, const Batch& batch, const OnGradient& on_gradient = {}) const;
  void keep_buffers(const std::vector<at::Tensor>& outputs);
  at::Tensor step_at_once(const Batch& batch);
  at::Tensor step_in_backward(const Batch& batch);
  std::vector<at::Tensor> run_evaluation(const Batch& batch) const;

  const PackageManifest manifest_;
  const CompiledGraph train_;
  const CompiledGraph evaluate_;
  std::vector<at::Tensor> trained_;            // the parameters that are trained
  std::vector<at::Tensor> state_;              // in the manifest's order
  std::map<std::string, at::Tensor> buffers_;  // those that training steps change
  bool is_deferred_ = false;
};

}  // namespace narrowcast::models
