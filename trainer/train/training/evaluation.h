// Collective evaluations: a model's loss on held-out data, and sums over ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/model.h>
#include <narrowcast/process_group.h>
#include "trainer/train/data/dataset.h"
#include "trainer/train/optimization/precision.h"

namespace narrowcast::training {

// The amount of held-out data, and the way it is evaluated.
struct EvaluationOptions {
  int64_t samples = 512;  // held-out samples, over all ranks; all samples if there are fewer
  int64_t batch = 32;     // samples per forward pass of a rank
  Precision precision = Precision::kFp32;
};

// A model's results on held-out data.
struct HeldOut {
  double loss = 0;                      // mean over the samples
  std::optional<double> accuracy = {};  // share of right answers, if the model counts them (models::Evaluated)
};

// Evaluates the model, on its device, over the same held-out samples for every world size and every seed of the
// training. It uses evaluation mode and rank 0's buffers, without gradients; mode and buffers are restored. A
// collective: rank r computes the r-th of world_size contiguous parts, then sums and counts are all-reduced, so all
// ranks return the same bits. Throws c10::ValueError for options below 1 and c10::DistBackendError if a peer failed.
HeldOut evaluate_held_out(models::Model& model, const data::Dataset& dataset, const ProcessGroupPtr& group,
                          const EvaluationOptions& options);

// A collective: replaces `term`, of equal shape and dtype on all ranks, by the sum over all ranks, and returns it.
// Throws c10::DistBackendError naming `step`, the purpose, if a peer failed.
at::Tensor sum_over_ranks(const ProcessGroupPtr& group, at::Tensor term, const std::string& step);

}  // namespace narrowcast::training
