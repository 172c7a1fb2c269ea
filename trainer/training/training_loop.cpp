#include "trainer/training/training_loop.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <vector>

#include "trainer/data/batch_plan.h"
#include "trainer/data/sample_order.h"
#include "trainer/training/evaluation.h"

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
        ddp_(setup.model, setup.group, setup.ddp),
        optimizer_(make_optimizer(*setup.model, options.optimizer)) {}

  TrainingResult run() {
    segment_began_ = Clock::now();
    for (int64_t step = 1; step <= options_.steps && !result_.diverged_at.has_value(); ++step) {
      train_one(step);
      const bool last = step == options_.steps;
      if (last || step % options_.log_every == 0) {
        report(step);
      }
      if (last || (options_.eval_every > 0 && step % options_.eval_every == 0)) {
        evaluate(step);
      }
    }
    result_.payload_bytes_sent = ddp_.payload_bytes_sent();
    result_.payload_bytes_without_hook = ddp_.payload_bytes_without_hook();
    return result_;
  }

 private:
  // Optimizer step `step`, counted from 1.
  void train_one(int64_t step) {
    const double window_loss_before = window_loss_;
    ddp_.zero_grad();
    for (int64_t micro_step = 0; micro_step + 1 < options_.accumulation_steps; ++micro_step) {
      const auto unsynchronized = ddp_.no_sync();
      backward(step, micro_step);
    }
    backward(step, options_.accumulation_steps - 1);
    ++window_batches_;
    if (options_.skip_nonfinite_steps && !gradients_are_finite(parameters_)) {
      window_loss_ = window_loss_before;
      ++result_.skipped_steps;
      return;
    }
    set_learning_rate(*optimizer_, learning_rate_.at(step - 1));
    if (options_.clip_grad_norm > 0) {
      gradient_norm_ = clip_gradient_norm(parameters_, options_.clip_grad_norm);
    }
    optimizer_->step();
    ++window_steps_;
  }

  void backward(int64_t step, int64_t micro_step) {
    const models::Batch batch = setup_.dataset.training_batch(plan_.samples(order_, rank_, step - 1, micro_step));
    const at::Tensor loss = ddp_.forward(batch) / static_cast<double>(options_.accumulation_steps);
    ddp_.backward(loss);
    window_loss_ += loss.item<double>();
  }

  // Collective: all ranks learn the mean loss, and so whether to go on. If all steps were skipped there is none.
  void report(int64_t step) {
    const double sum = all_reduce_sum(setup_.group, {window_loss_})[0];
    const double seconds = std::chrono::duration<double>(Clock::now() - segment_began_).count();
    result_.seconds += seconds;
    result_.training_loss = sum / static_cast<double>(window_steps_ * setup_.group->getSize());
    if (!std::isfinite(result_.training_loss)) {
      result_.diverged_at = step;
    }
    if (setup_.observer != nullptr) {
      const int64_t units = window_batches_ * options_.batch_size * setup_.units_per_sample;
      setup_.observer->on_step({.step = step,
                                .loss = result_.training_loss,
                                .learning_rate = learning_rate_.at(step - 1),
                                .gradient_norm = gradient_norm_,
                                .units_per_second = static_cast<double>(units) / seconds,
                                .seconds = result_.seconds,
                                .payload_bytes_sent = ddp_.payload_bytes_sent(),
                                .skipped_steps = result_.skipped_steps});
    }
    window_loss_ = 0;
    window_steps_ = 0;
    window_batches_ = 0;
    segment_began_ = Clock::now();
  }

  void evaluate(int64_t step) {
    if (options_.eval_batches == 0 || result_.diverged_at.has_value()) {
      return;
    }
    const auto began = Clock::now();
    result_.validation_loss =
        held_out_loss(*setup_.model, setup_.dataset, setup_.group,
                      {.samples = options_.eval_batches * options_.batch_size, .batch = plan_.micro_batch()});
    if (!std::isfinite(*result_.validation_loss)) {
      result_.diverged_at = step;
    }
    if (setup_.observer != nullptr) {
      setup_.observer->on_evaluation({.step = step, .loss = *result_.validation_loss, .seconds = result_.seconds});
    }
    segment_began_ += Clock::now() - began;  // Evaluation is not training time.
  }

  const TrainingSetup& setup_;
  const TrainingOptions& options_;
  int64_t rank_;
  data::BatchPlan plan_;
  data::SampleOrder order_;
  LearningRate learning_rate_;
  std::vector<at::Tensor> parameters_;
  DistributedDataParallel<std::shared_ptr<models::Model>> ddp_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;

  TrainingResult result_;
  std::optional<double> gradient_norm_;
  // Since the last report:
  double window_loss_ = 0;  // of this rank, summed over the steps taken
  int64_t window_steps_ = 0;
  int64_t window_batches_ = 0;  // steps taken and skipped
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
