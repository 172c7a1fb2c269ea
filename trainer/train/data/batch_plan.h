// Which part of each global batch a rank computes.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/train/data/sample_order.h"

namespace narrowcast::data {

// How a global batch is shared out.
struct BatchPlanOptions {
  int64_t global_batch = 1;        // samples per optimizer step, over all ranks and micro-steps
  int64_t world_size = 1;          // ranks
  int64_t accumulation_steps = 1;  // forward/backward passes per optimizer step on each rank
};

// Step s of a run uses the positions s * global_batch .. (s + 1) * global_batch - 1 of the sample order,
// whatever the world size. They are cut into world_size equal contiguous parts, rank r's being the r-th, and
// each of these into accumulation_steps equal contiguous micro-batches. All micro-batches have one size, so
// the mean over ranks and micro-steps of their mean losses is the mean over the global batch.
class BatchPlan {
 public:
  // Throws c10::ValueError for a value below 1, or if world_size * accumulation_steps does not divide global_batch.
  explicit BatchPlan(const BatchPlanOptions& options);

  const BatchPlanOptions& options() const { return options_; }

  // Samples per forward pass of one rank.
  int64_t micro_batch() const { return micro_batch_; }

  // Samples of micro-step `micro_step` (0..accumulation_steps-1) of optimizer step `step` (>= 0) on rank `rank`:
  // micro_batch() indices of a training set. Throws c10::ValueError for a value out of its range.
  std::vector<int64_t> samples(const SampleOrder& order, int64_t rank, int64_t step, int64_t micro_step) const;

 private:
  BatchPlanOptions options_;
  int64_t micro_batch_;
};

}  // namespace narrowcast::data
