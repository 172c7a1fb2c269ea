#include "trainer/train/training/training_options.h"

#include <c10/util/Exception.h>

#include <cmath>

#include "trainer/train/data/dataset.h"

namespace narrowcast::training {
namespace {

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
  check_not_below("early_stop", options.early_stop, 0);
  TORCH_CHECK_VALUE(options.early_stop == 0 || (options.eval_every > 0 && options.eval_batches > 0),
                    "early_stop: needs eval_every, after how many steps to look at the held-out data");
  check_not_below("log_every", options.log_every, 1);
  check_not_below("check_replicas_every", options.check_replicas_every, 0);
  TORCH_CHECK_VALUE(data::divides_evenly({.global_batch = options.batch_size,
                                          .world_size = world_size,
                                          .accumulation_steps = options.accumulation_steps}),
                    "batch_size: must be divisible by ranks * accumulation_steps (", world_size, " * ",
                    options.accumulation_steps, "), but is ", options.batch_size);
  check_not_below("max_skipped_steps", options.max_skipped_steps, 1);
  TORCH_CHECK_VALUE(options.skip_nonfinite_steps || options.precision != Precision::kFp16,
                    "skip_nonfinite_steps: must be true with precision fp16, whose scale is found by such steps");
  TORCH_CHECK_VALUE(std::isfinite(options.clip_grad_norm) && options.clip_grad_norm >= 0,
                    "clip_grad_norm: must be at least 0, but is ", options.clip_grad_norm);
  LearningRateSchedule(options.learning_rate, options.steps);
  check_optimizer_options(options.optimizer);
}

}  // namespace narrowcast::training
