#include "trainer/train/data/batch_plan.h"

#include <c10/util/Exception.h>

namespace narrowcast::data {
namespace {

void check_at_least_one(const char* name, int64_t value) {
  TORCH_CHECK_VALUE(value >= 1, name, " must be at least 1, but is ", value);
}

int64_t checked_micro_batch(const BatchPlanOptions& options) {
  check_at_least_one("global_batch", options.global_batch);
  check_at_least_one("world_size", options.world_size);
  check_at_least_one("accumulation_steps", options.accumulation_steps);
  const int64_t per_rank = options.global_batch / options.world_size;  // in two steps: their product might overflow
  TORCH_CHECK_VALUE(options.global_batch % options.world_size == 0 && per_rank % options.accumulation_steps == 0,
                    "global_batch must be divisible by world_size * accumulation_steps, but is ", options.global_batch,
                    " with world_size ", options.world_size, " and accumulation_steps ", options.accumulation_steps);
  return per_rank / options.accumulation_steps;
}

void check_below(const char* name, int64_t value, int64_t limit) {
  TORCH_CHECK_VALUE(value >= 0 && value < limit, name, " must be in 0..", limit - 1, ", but is ", value);
}

}  // namespace

BatchPlan::BatchPlan(const BatchPlanOptions& options) : options_(options), micro_batch_(checked_micro_batch(options)) {}

std::vector<int64_t> BatchPlan::samples(const SampleOrder& order, int64_t rank, int64_t step,
                                        int64_t micro_step) const {
  check_below("rank", rank, options_.world_size);
  check_below("micro_step", micro_step, options_.accumulation_steps);
  TORCH_CHECK_VALUE(step >= 0, "step must be at least 0, but is ", step);
  const int64_t part = rank * options_.accumulation_steps + micro_step;
  const int64_t first = step * options_.global_batch + part * micro_batch_;
  std::vector<int64_t> indices(static_cast<size_t>(micro_batch_));
  for (int64_t i = 0; i < micro_batch_; ++i) {
    indices[static_cast<size_t>(i)] = order.at(first + i);
  }
  return indices;
}

}  // namespace narrowcast::data
