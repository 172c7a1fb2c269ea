// Trainings that fail in a step, as if a rank was lost.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/ranks.h"
#include "tests/trainer/train/training/resume_runs.h"

namespace narrowcast::training {

using resuming::Models;
using resuming::ResumeCase;

// Throws in one training pass, as a lost peer makes a pass throw. It throws instead of the forward pass, or in the
// backward pass before the last gradient, when other buckets have been exchanged.
class FailingModel : public models::Model {
 public:
  struct Failure {
    int64_t pass = 0;  // 0: none
    bool is_in_backward = false;
  };
  FailingModel(std::shared_ptr<models::Model> model, const Failure& failure)
      : model_(register_module("model", std::move(model))), failure_(failure) {
    model_->parameters().front().register_hook([this](const at::Tensor& gradient) {
      TORCH_CHECK_WITH(DistBackendError, !failure_.is_in_backward || passes_ != failure_.pass,
                       "rank 0: rank 1 is lost");
      return gradient;
    });
    if (model_->announces_layers()) {
      model_->set_layer_gate([this](const torch::nn::Module& layer) { announce(layer); });
    }
  }
  at::Tensor forward(const models::Batch& batch) override {
    const bool fails = is_training() && ++passes_ == failure_.pass;
    TORCH_CHECK_WITH(DistBackendError, !fails || failure_.is_in_backward, "rank 0: rank 1 is lost");
    return model_->forward(batch);
  }
  models::ModelOptions options() const override { return model_->options(); }
  bool announces_layers() const override { return model_->announces_layers(); }

 private:
  std::shared_ptr<models::Model> model_;
  const Failure failure_;
  int64_t passes_ = 0;
};

inline Models new_models(int64_t world_size, const ResumeCase& value, const FailingModel::Failure& failure) {
  Models models;
  for (const auto& model : resuming::models_of(world_size, value, 1)) {
    models.push_back(std::make_shared<FailingModel>(model, failure));
  }
  return models;
}

inline Models train_undisturbed(int64_t world_size, const ResumeCase& value) {
  const TrainingOptions options = resuming::options_of(value);
  const data::TextDataset dataset = testing::small_text();
  Models models = new_models(world_size, value, {});
  testing::run_ranks(world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    train({.model = models[rank], .dataset = dataset, .group = group, .ddp = value.ddp}, options);
  });
  return models;
}

}  // namespace narrowcast::training
