// What PowerSGD keeps of a bucket from step to step.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ops/collectives/power_sgd/compression_plan.h"
#include "ops/collectives/power_sgd/low_rank.h"

namespace narrowcast::collectives {

// What an exchange begins with and leaves for the next one of the same bucket. Of the arithmetic's dtype, on the
// bucket's device.
struct LowRankState {
  at::Tensor residual;      // [array_numel] of the plan: what was lost, and is added next time; or undefined
  at::Tensor factor;        // all Q [q_numel] or, where `is_p`, all P [p_numel], with which the next step begins
  bool is_p = false;        // only where steps alternate
  std::vector<bool> known;  // by matrix, in the order of batches: whether `factor` has it, or it is to be drawn

  // The batch's part of all P or all Q, whichever `factor` is: a view.
  at::Tensor part_of(const at::Tensor& all, const MatrixBatch& batch) const {
    return is_p ? batch.p_of(all) : batch.q_of(all);
  }
};

// Makes a factor that is undefined, of `numbers`' dtype and device, and draws what it lacks: from then on all of it is
// known. One seed for all that the bucket lacks.
void draw_unknown(const CompressionPlan& plan, at::TensorOptions numbers, SeedDraws& draws, LowRankBits bits,
                  LowRankState& state);

}  // namespace narrowcast::collectives
