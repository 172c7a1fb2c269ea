#include "trainer/training/training_loop.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "ops/errors.h"
#include "trainer/checkpoint/agreement.h"
#include "trainer/data/batch_plan.h"
#include "trainer/data/sample_order.h"
#include "trainer/training/batch_feed.h"
#include "trainer/training/evaluation.h"
#include "trainer/training/precision/gradient_scaler.h"
#include "trainer/training/state/training_state.h"

namespace narrowcast::training {
namespace {

using Clock = std::chrono::steady_clock;

data::BatchPlan make_plan(const TrainingOptions& options, int64_t world_size) {
  return data::BatchPlan(
      {.global_batch = options.batch_size, .world_size = world_size, .accumulation_steps = options.accumulation_steps});
}

// One training, from the first step to the last.
class TrainingRun {
 public:
  TrainingRun(const TrainingSetup& setup, const TrainingOptions& options)
      : setup_(setup),
        options_(options),
        rank_(setup.group->getRank()),
        plan_(make_plan(options, setup.group->getSize())),
        order_(setup.dataset.training_size(), options.seed),
        learning_rate_(options.learning_rate, options.steps),
        parameters_(setup.model->parameters()),
        window_loss_(zero()),
        feed_(setup.dataset, parameters_.at(0).device()),
        ddp_(setup.model, setup.group, setup.ddp),
        optimizer_(make_optimizer(*setup.model, options.optimizer)) {
    if (options.precision == Precision::kFp16) {
      scaler_.emplace(parameters_.at(0).device());
    }
  }

  TrainingResult run() {
    if (setup_.checkpoints.restored != nullptr) {
      go_on_from(*setup_.checkpoints.restored);
    }
    segment_began_ = Clock::now();
    prepare(counters_.step + 1, /*micro_step=*/0);
    while (counters_.step < options_.steps && !diverged_at_.has_value()) {
      train_one(++counters_.step);
      if (is_due(options_.log_every)) {
        report();
      }
      if (is_due(options_.eval_every)) {
        evaluate();
      }
      if (is_due(setup_.checkpoints.every)) {
        save();
      }
    }
    return result();
  }

 private:
  TrainingParts parts() {
    return {.model = ddp_,
            .optimizer = *optimizer_,
            .scaler = scaler_ ? &*scaler_ : nullptr,
            .order = order_,
            .batch_size = options_.batch_size};
  }

  // A collective: all ranks can, or none does. Frees the memory of what was read.
  void go_on_from(checkpoint::Restored& restored) {
    const std::string failure =
        checkpoint::first_failure(setup_.group, [&] { counters_ = load_training(restored, parts()); });
    NARROWCAST_CHECK_INPUT(failure.empty(), failure);
    window_loss_.fill_(counters_.window_loss);
    restored.replica.clear();
    restored.ranks.clear();
    restored.first_rank.clear();
  }

  // After every so many steps (0: none), and after the last one.
  bool is_due(int64_t every) const {
    return counters_.step == options_.steps || (every > 0 && counters_.step % every == 0);
  }

  TrainingResult result() const {
    return {.validation_loss = counters_.validation_loss,
            .training_loss = counters_.training_loss,
            .payload_bytes_sent = ddp_.payload_bytes_sent(),
            .payload_bytes_without_hook = ddp_.payload_bytes_without_hook(),
            .seconds = counters_.seconds,
            .skipped_steps = counters_.skipped_steps,
            .diverged_at = diverged_at_};
  }

  // Optimizer step `step`, counted from 1.
  void train_one(int64_t step) {
    at::Tensor loss = zero();
    ddp_.zero_grad();
    for (int64_t micro_step = 0; micro_step + 1 < options_.accumulation_steps; ++micro_step) {
      const auto unsynchronized = ddp_.no_sync();
      loss += backward(step, micro_step);
    }
    loss += backward(step, options_.accumulation_steps - 1);
    ++counters_.window_batches;
    if (!gradients_can_be_used()) {
      ++counters_.skipped_steps;
      return;
    }
    window_loss_ += loss;
    set_learning_rate(*optimizer_, learning_rate_.at(step - 1));
    if (options_.clip_grad_norm > 0) {
      counters_.gradient_norm = clip_gradient_norm(parameters_, options_.clip_grad_norm);
    }
    optimizer_->step();
    ++counters_.window_steps;
  }

  at::Tensor zero() const { return at::zeros({}, at::TensorOptions(at::kDouble).device(parameters_[0].device())); }

  // Returns the loss, a scalar on the device. Nothing here waits for a GPU, which computes while the next batch is
  // made.
  at::Tensor backward(int64_t step, int64_t micro_step) {
    const at::Tensor loss = forward(feed_.take()) / static_cast<double>(options_.accumulation_steps);
    ddp_.backward(scaler_ ? scaler_->scaled(loss) : loss);
    const bool is_last = micro_step + 1 == options_.accumulation_steps;
    prepare(is_last ? step + 1 : step, is_last ? 0 : micro_step + 1);
    return loss.detach();
  }

  at::Tensor forward(const models::Batch& batch) {
    const Autocast autocast(batch.inputs.device().type(), options_.precision);
    return ddp_.forward(batch);
  }

  // The batch of that micro-step; none after the last step.
  void prepare(int64_t step, int64_t micro_step) {
    if (step <= options_.steps) {
      feed_.prepare(plan_.samples(order_, rank_, step - 1, micro_step));
    }
  }

  // Whether the step is to be taken; the gradients are those of the loss then.
  bool gradients_can_be_used() {
    return scaler_ ? scaler_->unscale(parameters_)
                   : !options_.skip_nonfinite_steps || gradients_are_finite(parameters_);
  }

  // Collective: all ranks learn the mean loss, and so whether to go on. If all steps were skipped there is none.
  void report() {
    const double sum = all_reduce_sum(setup_.group, {window_loss_.item<double>()})[0];
    const double seconds = window_seconds();
    counters_.seconds += seconds;
    counters_.training_loss = sum / static_cast<double>(counters_.window_steps * setup_.group->getSize());
    if (!std::isfinite(counters_.training_loss)) {
      diverged_at_ = counters_.step;
    }
    if (setup_.observer != nullptr) {
      const int64_t units = counters_.window_batches * options_.batch_size * setup_.units_per_sample;
      setup_.observer->on_step({.step = counters_.step,
                                .loss = counters_.training_loss,
                                .learning_rate = learning_rate_.at(counters_.step - 1),
                                .gradient_norm = counters_.gradient_norm,
                                .units_per_second = static_cast<double>(units) / seconds,
                                .seconds = counters_.seconds,
                                .payload_bytes_sent = ddp_.payload_bytes_sent(),
                                .skipped_steps = counters_.skipped_steps});
    }
    window_loss_.zero_();
    counters_.window_steps = 0;
    counters_.window_batches = 0;
    counters_.window_seconds = 0;
    segment_began_ = Clock::now();
  }

  // Of training since the last report.
  double window_seconds() const {
    return counters_.window_seconds + std::chrono::duration<double>(Clock::now() - segment_began_).count();
  }

  void evaluate() {
    if (options_.eval_batches == 0 || diverged_at_.has_value()) {
      return;
    }
    const auto began = Clock::now();
    counters_.validation_loss = held_out_loss(*setup_.model, setup_.dataset, setup_.group,
                                              {.samples = options_.eval_batches * options_.batch_size,
                                               .batch = plan_.micro_batch(),
                                               .precision = options_.precision});
    if (!std::isfinite(*counters_.validation_loss)) {
      diverged_at_ = counters_.step;
    }
    if (setup_.observer != nullptr) {
      setup_.observer->on_evaluation(
          {.step = counters_.step, .loss = *counters_.validation_loss, .seconds = counters_.seconds});
    }
    segment_began_ += Clock::now() - began;  // Evaluation is not training time.
  }

  // Collective. What has diverged is not worth keeping, and buckets that will change cannot be.
  void save() {
    if (setup_.checkpoints.writer == nullptr || diverged_at_.has_value() || !ddp_.settle_buckets()) {
      return;
    }
    Counters counters = counters_;
    counters.window_loss = window_loss_.item<double>();
    counters.window_seconds = window_seconds();
    const auto began = Clock::now();
    const checkpoint::WriteReport written = setup_.checkpoints.writer->write(save_training(parts(), counters));
    const auto elapsed = Clock::now() - began;
    if (setup_.observer != nullptr) {
      setup_.observer->on_checkpoint({.step = counters_.step,
                                      .path = written.path,
                                      .bytes = written.bytes,
                                      .seconds = std::chrono::duration<double>(elapsed).count()});
    }
    segment_began_ += elapsed;  // Nor are checkpoints.
  }

  const TrainingSetup& setup_;
  const TrainingOptions& options_;
  int64_t rank_;
  data::BatchPlan plan_;
  data::SampleOrder order_;
  LearningRate learning_rate_;
  std::vector<at::Tensor> parameters_;
  at::Tensor window_loss_;  // counters_.window_loss, on the device: to count is not to wait
  BatchFeed feed_;
  ReplicatedModel ddp_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<GradientScaler> scaler_;  // with Precision::kFp16

  Counters counters_;
  std::optional<int64_t> diverged_at_;
  Clock::time_point segment_began_;
};

void check_not_below(const char* name, int64_t value, int64_t least) {
  TORCH_CHECK_VALUE(value >= least, name, ": must be at least ", least, ", but is ", value);
}

}  // namespace

void check_training_options(const TrainingOptions& options, int64_t world_size) {
  check_not_below("steps", options.steps, 1);
  check_not_below("batch_size", options.batch_size, 1);
  check_not_below("accumulation_steps", options.accumulation_steps, 1);
  check_not_below("eval_every", options.eval_every, 0);
  check_not_below("eval_batches", options.eval_batches, 0);
  check_not_below("log_every", options.log_every, 1);
  TORCH_CHECK_VALUE(
      options.batch_size % world_size == 0 && options.batch_size / world_size % options.accumulation_steps == 0,
      "batch_size: must be divisible by ranks * accumulation_steps (", world_size, " * ", options.accumulation_steps,
      "), but is ", options.batch_size);
  TORCH_CHECK_VALUE(options.skip_nonfinite_steps || options.precision != Precision::kFp16,
                    "skip_nonfinite_steps: must be true with precision fp16, whose scale is found by such steps");
  TORCH_CHECK_VALUE(std::isfinite(options.clip_grad_norm) && options.clip_grad_norm >= 0,
                    "clip_grad_norm: must be at least 0, but is ", options.clip_grad_norm);
  LearningRate(options.learning_rate, options.steps);
  check_optimizer_options(options.optimizer);
}

TrainingResult train(const TrainingSetup& setup, const TrainingOptions& options) {
  check_training_options(options, setup.group->getSize());
  return TrainingRun(setup, options).run();
}

}  // namespace narrowcast::training
