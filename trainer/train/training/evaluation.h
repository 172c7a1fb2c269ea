// Collective evaluations: a model's loss on held-out data, and sums over ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/model.h>
#include <narrowcast/process_group.h>
#include "models/imported/imported_model.h"
#include "trainer/train/data/dataset.h"
#include "trainer/train/optimization/precision.h"
#include "trainer/train/training/training_options.h"

namespace narrowcast::training {

// The amount of held-out data, and the way it is evaluated.
struct EvaluationOptions {
  int64_t samples = 512;  // held-out samples, over all ranks; all samples if there are fewer
  int64_t batch = 32;     // samples per forward pass of a rank
  Precision precision = Precision::kFp32;
};

// The evaluation that these options of a training describe.
EvaluationOptions evaluation_of(const TrainingOptions& options, int64_t micro_batch);

// A rank's share of the held-out samples.
struct EvaluatingRank {
  int64_t rank = 0;
  int64_t world_size = 1;
};

// Held-out samples by their positions in the order of evaluation: begin..end-1.
struct HeldOutBatch {
  int64_t begin = 0;
  int64_t end = 0;
};

// The batches in which a rank evaluates its share of `samples` held-out samples, in order. A rest with too few samples
// for the model joins the batch before it. With too few samples for all ranks, the first ranks evaluate all of them.
// Throws c10::ValueError if the model takes more samples at once than there are.
std::vector<HeldOutBatch> held_out_batches(int64_t samples, const EvaluatingRank& of, int64_t batch,
                                           const models::Model::BatchSizes& sizes);

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

// Evaluates the smallest of the batches that evaluate_held_out evaluates on that rank, so that its errors come before a
// training. Not a collective. It changes nothing.
void try_evaluation(models::Model& model, const data::Dataset& dataset, const EvaluatingRank& of,
                    const EvaluationOptions& options);

// A collective: replaces `term`, of equal shape and dtype on all ranks, by the sum over all ranks, and returns it.
// Throws c10::DistBackendError naming `step`, the purpose, if a peer failed.
at::Tensor sum_over_ranks(const ProcessGroupPtr& group, at::Tensor term, const std::string& step);

}  // namespace narrowcast::training
