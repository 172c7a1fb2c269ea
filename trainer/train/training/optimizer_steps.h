// The optimizer steps of a training.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <narrowcast/grad_scaler.h>
#include <narrowcast/learning_rate.h>
#include <narrowcast/outer_optimizer.h>
#include "trainer/ddp/reducer/bucket_size.h"
#include "trainer/train/data/dataset.h"
#include "trainer/train/optimization/device.h"
#include "trainer/train/optimization/own_gradients.h"
#include "trainer/train/optimization/precision.h"
#include "trainer/train/optimization/saved_buffers.h"
#include "trainer/train/training/training_loop.h"
#include "trainer/train/training/training_state.h"

namespace narrowcast::training {

// How long this rank waits for averages when its own gradients are there, which is what a backward pass does not hide
// of the exchange. Of gradients on a GPU, which the host does not wait for, nothing is known.
class ExchangeClock {
 public:
  // Before a Reducer watches the parameters: what it does with the last gradient is exchange.
  explicit ExchangeClock(const std::vector<at::Tensor>& parameters);

  // Directly after a backward pass that has averaged gradients.
  void end_pass();
  // Of all passes since the last call.
  double take_seconds() { return std::exchange(seconds_, 0); }

 private:
  using Clock = std::chrono::steady_clock;

  std::atomic<Clock::time_point> last_gradient_;  // written by the thread of the backward pass
  double seconds_ = 0;
  AccumulatorHooks hooks_;
};

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
  // A collective: the step after counters.step, which is counted, and taken unless the gradients cannot be used. A step
  // that is not taken leaves parameters and buffers as they were before it. Leaves counters.window_loss alone.
  void take_next(Counters& counters);

  // In seconds since the last call, as ExchangeClock has it; none on a GPU.
  std::optional<double> take_exchange_seconds();

  // Of the skipped steps since the last call, those in which this rank's own gradients were not finite.
  int64_t take_nonfinite_steps() { return std::exchange(nonfinite_steps_, 0); }

  // What Counters has under that name, kept on the device: asking for it waits for a GPU.
  double window_loss() const { return window_loss_.item<double>(); }
  void set_window_loss(double sum) { window_loss_.fill_(sum); }

 private:
  at::Tensor zero() const;
  at::Tensor backward(int64_t step, int64_t micro_step);
  at::Tensor forward(const models::Batch& batch);
  void prepare(int64_t step, int64_t micro_step);
  void skip(Counters& counters);
  bool gradients_can_be_used();
  bool can_be_used_unscaled();
  bool unscale();
  double clip();
  void update(Counters& counters);

  const TrainingOptions& options_;
  int64_t rank_;
  data::BatchPlan plan_;
  data::SampleOrder order_;
  LearningRateSchedule learning_rate_;
  std::vector<at::Tensor> parameters_;
  const bool measures_norm_first_;  // on a GPU, which is waited for once in a step
  double norm_ = 0;                 // there: of the gradients of this step, if they are to be finite or to be clipped
  at::Tensor window_loss_;
  BatchFeed feed_;
  int64_t nonfinite_steps_ = 0;
  std::unique_ptr<OwnGradients> own_gradients_;    // before ddp_, which has a Reducer; null for a rank alone
  std::unique_ptr<ExchangeClock> exchange_clock_;  // likewise; null on a GPU
  ReplicatedModel ddp_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<OuterOptimizer> outer_;  // after ddp_, which makes the parameters equal
  std::optional<GradScaler> scaler_;     // with Precision::kFp16
  std::optional<SavedBuffers> before_;   // this rank's own, from before the step; none if no step is ever skipped
};

}  // namespace narrowcast::training
