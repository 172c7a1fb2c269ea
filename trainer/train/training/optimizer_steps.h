// The optimizer steps of a training.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <narrowcast/outer_optimizer.h>
#include "trainer/train/data/dataset.h"
#include "trainer/train/training/device.h"
#include "trainer/train/training/precision.h"
#include "trainer/train/training/training_loop.h"
#include "trainer/train/training/training_state.h"

namespace narrowcast::training {

// One rank's part in them: batches, gradients and their exchange, updates.
class OptimizerSteps {
 public:
  // Both must outlive it.
  OptimizerSteps(const TrainingSetup& setup, const TrainingOptions& options);

  // What a checkpoint holds, and where one is read to.
  TrainingParts parts();
  ReplicatedModel& model() { return ddp_; }
  // None: null.
  OuterOptimizer* outer() { return outer_ ? &*outer_ : nullptr; }
  // By this rank, what the outer optimizer has sent included.
  int64_t payload_bytes_sent() const;
  // By this rank to measure links and exchanges, which is in no other count.
  int64_t measuring_bytes_sent() const;
  const data::BatchPlan& plan() const { return plan_; }
  double learning_rate_of(int64_t step) const { return learning_rate_.at(step - 1); }

  // Begins to fetch the first batch of step `step`, counted from 1.
  void begin_at(int64_t step) { prepare(step, /*micro_step=*/0); }
  // A collective: the step after counters.step, which is counted, and taken unless the gradients cannot be used.
  // Leaves counters.window_loss alone.
  void take_next(Counters& counters);

  // What Counters has under that name, kept on the device: asking for it waits for a GPU.
  double window_loss() const { return window_loss_.item<double>(); }
  void set_window_loss(double sum) { window_loss_.fill_(sum); }

 private:
  at::Tensor zero() const;
  at::Tensor backward(int64_t step, int64_t micro_step);
  at::Tensor forward(const models::Batch& batch);
  void prepare(int64_t step, int64_t micro_step);
  bool gradients_can_be_used();
  void update(Counters& counters);

  const TrainingOptions& options_;
  int64_t rank_;
  data::BatchPlan plan_;
  data::SampleOrder order_;
  LearningRate learning_rate_;
  std::vector<at::Tensor> parameters_;
  at::Tensor window_loss_;
  BatchFeed feed_;
  ReplicatedModel ddp_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<OuterOptimizer> outer_;   // after ddp_, which makes the parameters equal
  std::optional<GradientScaler> scaler_;  // with Precision::kFp16
};

}  // namespace narrowcast::training
