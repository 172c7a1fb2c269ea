// Everything that a training changes, its counters too, into a checkpoint and back.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>

#include <narrowcast/ddp.h>
#include <narrowcast/grad_scaler.h>
#include <narrowcast/model.h>
#include <narrowcast/outer_optimizer.h>
#include "trainer/train/checkpoint/manifest.h"
#include "trainer/train/data/dataset.h"

namespace narrowcast::training {

// What a training counts.
struct Counters {
  int64_t step = 0;                         // optimizer steps done
  int64_t skipped_steps = 0;                // of those, for their gradients
  std::optional<int64_t> skipped_in_a_row;  // of those, the last ones; none before the first step
  double seconds = 0;                       // of training, up to the last report
  double training_loss = 0;                 // of the last report
  std::optional<double> validation_loss;    // of the last evaluation
  std::optional<double> validation_accuracy;
  std::optional<double> gradient_norm;  // of the last step that was taken, before clipping
  // Of a training that may end early (TrainingOptions::early_stop):
  std::optional<double> best_validation_loss;  // the lowest so far
  int64_t evaluations_since_best = 0;
  // Since the last report:
  double window_loss = 0;  // of this rank, summed over the steps taken
  int64_t window_steps = 0;
  int64_t window_batches = 0;  // steps taken and skipped
  double window_seconds = 0;   // of training, before the interruption
};

// All but the step, into tensors: those that all ranks agree on, or where they need not those of rank 0, and this
// rank's own.
void save_counters(const Counters& counters, checkpoint::Content& content);

// In a world of another size the sum over ranks of window_loss, divided by their number, stays the same. Throws
// CorruptInputError naming what is missing or no number.
Counters load_counters(const checkpoint::Restored& restored, int64_t world_size);

using ReplicatedModel = DistributedDataParallel<std::shared_ptr<models::Model>>;

// The parts of a training; none is owned.
struct TrainingParts {
  ReplicatedModel& model;
  torch::optim::Optimizer& optimizer;
  GradScaler* scaler = nullptr;     // none without one
  OuterOptimizer* outer = nullptr;  // likewise
  const data::SampleOrder& order;
  int64_t batch_size = 1;  // samples per optimizer step
};

// Between steps, on every rank alike. Parameters, buffers and the optimizer's state are the replica's; with a hook that
// lets replicas differ each rank's own as well. An outer optimizer's are of both kinds (OuterState). The state of the
// hook and of LibTorch's generators is each rank's own. Learning rate and data follow from the step; the position in
// the data is in the manifest too. Tensors are the training's own, not copies.
checkpoint::Content save_training(const TrainingParts& parts, const Counters& counters);

// Of that what must have the same bits on all ranks between steps, where the hook keeps replicas equal: the parameters,
// and the state of optimizer and scaler. Buffers may differ: those of batch norms follow each rank's own samples.
checkpoint::TensorMap replicated_state(const TrainingParts& parts);

// Restores a new training to the step of the checkpoint, and returns its counters. The world may have another size than
// the one that wrote the checkpoint, whose ranks are the former ranks (hooks::FormerRanks). The hook's state is made of
// the states of all former ranks that this rank gets. Generators and, where replicas differ, parameters and optimizer
// are those of the former rank with this one's number. Where there was none, its generators begin anew, with a seed of
// their own, and the others are those of former rank 0; with an outer optimizer, in a world of another size and where
// other ranks are a group, the parameters are the outer ones, and optimizer, gradient scaler and counters those of
// former rank 0. Throws CorruptInputError naming the checkpoint and what is missing or does not fit.
Counters load_training(const checkpoint::Restored& restored, const TrainingParts& parts);

}  // namespace narrowcast::training
