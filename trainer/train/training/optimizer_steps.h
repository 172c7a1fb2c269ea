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
#include "trainer/ddp/reducer/backward_watch.h"
#include "trainer/train/data/dataset.h"
#include "trainer/train/optimization/device.h"
#include "trainer/train/optimization/own_gradients.h"
#include "trainer/train/optimization/precision.h"
#include "trainer/train/optimization/saved_buffers.h"
#include "trainer/train/optimization/share_chooser.h"
#include "trainer/train/training/training_loop.h"
#include "trainer/train/training/training_state.h"

namespace narrowcast::training {

// Divides this rank's time in waiting for averages after its own gradients are ready, that is, the part of the exchange
// that a backward pass does not hide, and its own computation. Both are unknown for gradients on a GPU, since the host
// does not wait for them.
class PassClock {
 public:
  // Must be made before a Reducer watches the parameters: the Reducer's work on the last gradient counts as exchange.
  explicit PassClock(const std::vector<at::Tensor>& parameters);

  // Computation begins: a forward pass, or making a batch.
  void begin() { began_ = Clock::now(); }
  // Making a batch has ended.
  void end_batch() { computed_ += since_begin(Clock::now()); }
  // Call one of them directly after a backward pass, which averaged gradients or not. `waited`: the seconds of it for
  // which it waited for other ranks.
  void end_local_pass(double waited);
  void end_averaged_pass(double waited);
  // Such seconds of a forward pass.
  void leave_out(double seconds) { computed_ -= seconds; }

  // Seconds of all passes since the last call.
  double take_exchange_seconds() { return std::exchange(exchanged_, 0); }
  double take_computing_seconds() { return std::exchange(computed_, 0); }

 private:
  using Clock = std::chrono::steady_clock;
  double since_begin(Clock::time_point end) const { return std::chrono::duration<double>(end - began_).count(); }

  std::atomic<Clock::time_point> last_gradient_;  // written by the thread of the backward pass
  Clock::time_point began_;
  double exchanged_ = 0;
  double computed_ = 0;
  AccumulatorHooks hooks_;
};

// One rank's part in the optimizer steps: batches, gradients and their exchange, updates.
class OptimizerSteps {
 public:
  // Both arguments must outlive the object.
  OptimizerSteps(const TrainingSetup& setup, const TrainingOptions& options);

  // The parts that a checkpoint contains, and into which it is read. Calls finish_step().
  TrainingParts parts();
  ReplicatedModel& model() { return ddp_; }
  // Null without an outer optimizer.
  OuterOptimizer* outer() { return outer_ ? &*outer_ : nullptr; }
  // Null without a sharded optimizer.
  ShardedOptimizer* sharded() { return sharded_ ? &*sharded_ : nullptr; }
  // Whether rounds end without slow groups (OuterOptions::quorum).
  bool has_quorum() const { return outer_ && outer_->options().quorum().has_value(); }
  // The number of groups whose ranks average their gradients in each step: without such groups, that of the ranks.
  int64_t groups() const;
  // Whether all ranks have counted equally many steps, so that collectives of all ranks are possible: see
  // OuterOptimizer.
  bool steps_are_common() const { return !outer_ || outer_->steps_are_common(); }
  // Whether ranks meet only where clocks say so (OuterOptions::sync_seconds). Not in the warm-up.
  bool ends_rounds_by_time() const {
    return outer_ && outer_->options().sync_seconds() && outer_->steps() > outer_->options().warmup_steps();
  }
  OptimizerShards shards() const { return shards_; }
  // Null without one.
  const GradScaler* scaler() const { return scaler_ ? &*scaler_ : nullptr; }
  // Whether take_next has thrown while the ranks stepped their shards: parameters and optimizer may be partly those of
  // the next step.
  bool is_torn() const { return is_torn_; }
  // Whether take_next has thrown while this rank had what it needs for the step, but could not know whether other ranks
  // take it: they may be before or after it. Only over all ranks with second copies (ShardOptions::copies).
  bool is_in_doubt() const { return in_doubt_.has_value(); }
  // Then: takes the step without the other ranks, and returns its counters. Parameters of which this rank holds no
  // masters remain as they were.
  Counters take_step_in_doubt();
  // A sharded optimizer may still exchange parameters after take_next. Call this before others read them.
  void finish_step() {
    if (sharded_) sharded_->finish_step();
  }
  // After an error: waits for that exchange, which may have failed. Then the parameters that this rank can know are
  // those of the last step (ShardedParts::finish_held).
  void finish_step_alone();
  // A collective: ShardedOptimizer::largest_difference; empty without masters.
  std::optional<double> parameter_difference();
  // Bytes sent by this rank, including the outer optimizer's and those of a sharded optimizer's parameters.
  int64_t payload_bytes_sent() const;
  // Bytes sent by this rank to measure links and exchanges, which no other count includes.
  int64_t measuring_bytes_sent() const;
  const data::BatchPlan& plan() const { return plan_; }
  double learning_rate_of(int64_t step) const { return learning_rate_.at(step - 1); }

  // Begins to fetch the first batch of step `step`, counted from 1.
  void begin_at(int64_t step);
  // A collective: performs the step after counters.step and counts it, but skips the update if the gradients cannot be
  // used. A skipped step leaves parameters and buffers as they were before. Does not change counters.window_loss. If
  // the step ends a round of an outer optimizer, counters.step becomes the step number of all ranks.
  void take_next(Counters& counters);

  // In seconds since the last call, as from PassClock; empty on a GPU.
  std::optional<double> take_exchange_seconds();

  // The number of skipped steps since the last call in which this rank's own gradients were not finite.
  int64_t take_nonfinite_steps() { return std::exchange(nonfinite_steps_, 0); }

  // Counters::window_loss, kept on the device: reading it waits for a GPU.
  double window_loss() const { return window_loss_.item<double>(); }
  void set_window_loss(double sum) { window_loss_.fill_(sum); }
  at::Tensor copy_of_window_loss() const { return window_loss_.clone(); }

  // After take_next has thrown, which leaves parameters and the optimizer as they were unless is_torn(): makes the
  // buffers what they were before the step. Requires setup.checkpoints.surviving or options.skip_nonfinite_steps.
  void restore_buffers() { before_->restore(); }

 private:
  at::Tensor zero() const;
  at::Tensor backward(int64_t step, int64_t micro_step);
  at::Tensor forward(const models::Batch& batch);
  // Waits for other ranks in a forward pass.
  template <class Wait>
  void leave_out(const Wait& wait) {
    const auto began = std::chrono::steady_clock::now();
    wait();
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - began;
    if (clock_) clock_->leave_out(waited.count());
  }
  void prepare(int64_t step, int64_t micro_step);
  void choose_shares(int64_t step);
  void use_shares(const std::vector<int64_t>& shares);
  void skip(Counters& counters);
  bool gradients_can_be_used();
  bool can_be_used_unscaled();
  bool unscale();
  struct StepInDoubt {
    bool is_taken = true;  // else skipped
    at::Tensor loss;
    Counters counters;
  };
  void agree_on(const StepInDoubt& step);
  void prepare_update(Counters& counters);
  void update(Counters& counters);
  void begin_step();
  void settle_buckets();
  void follow_rounds(Counters& counters);

  const TrainingOptions& options_;
  reporting::TrainingObserver* const observer_;
  int64_t rank_;
  data::BatchPlan plan_;
  data::SampleOrder order_;
  LearningRateSchedule learning_rate_;
  std::vector<at::Tensor> parameters_;
  double norm_ = 0;  // of this step's gradients, if they must be finite or clipped
  at::Tensor window_loss_;
  BatchFeed feed_;
  std::optional<ShareChooser> share_chooser_;  // with Shares::Kind::kAuto, on several ranks and the CPU
  int64_t nonfinite_steps_ = 0;
  std::unique_ptr<OwnGradients> own_gradients_;  // before ddp_, which has a Reducer; null for a single rank
  std::unique_ptr<PassClock> clock_;             // before ddp_ as well; null on a GPU
  ReplicatedModel ddp_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  int64_t parameter_bytes_before_ = 0;       // that the sharded optimizer of an earlier run has sent
  std::optional<ShardedOptimizer> sharded_;  // after ddp_, which makes the parameters equal
  std::optional<OuterOptimizer> outer_;      // after ddp_, which makes the parameters equal
  std::optional<GradScaler> scaler_;         // with Precision::kFp16
  const OptimizerShards shards_;
  bool is_torn_ = false;
  bool holds_round_ = false;  // of sync_seconds, until buckets are settled
  std::optional<StepInDoubt> in_doubt_;
  const bool recovers_;                 // in place, so a step that fails must leave everything as it was
  std::optional<SavedBuffers> before_;  // buffers from before the step; empty if they are never restored
};

}  // namespace narrowcast::training
