// The whole state that a training changes, with its counters, to a checkpoint and back.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <narrowcast/ddp.h>
#include <narrowcast/grad_scaler.h>
#include <narrowcast/model.h>
#include <narrowcast/outer_optimizer.h>
#include <narrowcast/sharded_optimizer.h>
#include "trainer/ddp/shards/pieces.h"
#include "trainer/train/checkpoint/manifest.h"
#include "trainer/train/data/dataset.h"
#include "trainer/train/optimization/share_chooser.h"

namespace narrowcast::training {

// The counters of a training.
struct Counters {
  int64_t step = 0;                         // optimizer steps done
  int64_t skipped_steps = 0;                // of these, skipped for their gradients
  std::optional<int64_t> skipped_in_a_row;  // the last skipped steps in a row; none before the first step
  double seconds = 0;                       // of training, up to the last report
  double training_loss = 0;                 // of the last report
  std::optional<double> validation_loss;    // of the last evaluation
  std::optional<double> validation_accuracy;
  std::optional<double> gradient_norm;  // of the last step that was taken, before clipping
  // For a training that may end early (TrainingOptions::early_stop):
  std::optional<double> best_validation_loss;  // the lowest so far
  int64_t evaluations_since_best = 0;
  // Since the last report:
  double window_loss = 0;  // of this rank, summed over the steps taken
  int64_t window_steps = 0;
  int64_t window_batches = 0;  // steps taken and skipped
  double window_seconds = 0;   // of training, before the interruption
};

// Counts an evaluation with that validation loss for a training that may end early.
void compare_with_best(Counters& counters, double loss);

// Writes all counters except the step into tensors: counters that all ranks agree on, or rank 0's if they need not
// agree, and this rank's own.
void save_counters(const Counters& counters, checkpoint::Content& content);

// Multiplies the window_loss that save_counters wrote into Content::rank. Throws as load_counters does.
void scale_window_loss(checkpoint::TensorMap& rank, double factor);

// In a world of another size, the mean over ranks of window_loss stays the same. A rank without a former rank in a
// world of the same size takes the window_loss of FormerRanks::first. Throws CorruptInputError naming a value that is
// missing or not a number.
Counters load_counters(const checkpoint::Restored& restored, int64_t world_size);

using ReplicatedModel = DistributedDataParallel<std::shared_ptr<models::Model>>;

// The parts of a training; none is owned.
struct TrainingParts {
  ReplicatedModel& model;
  torch::optim::Optimizer& optimizer;
  GradScaler* scaler = nullptr;           // null without one
  OuterOptimizer* outer = nullptr;        // null without one
  ShardedOptimizer* sharded = nullptr;    // wraps `optimizer`; null without one
  int64_t* parameter_bytes = nullptr;     // that `sharded` sent before the training was resumed
  ShareChooser* share_chooser = nullptr;  // null: the shares do not change
  const data::SampleOrder& order;
  int64_t batch_size = 1;  // samples per optimizer step
};

// Before the names of parameters and buffers in checkpoint::Content::replica.
inline constexpr const char* kModel = "model.";

// The parameters and buffers of a module, under all of their names.
std::vector<hooks::NamedParameter> named_parameters(const torch::nn::Module& module);

// Whether this is the name of a counter in checkpoint::Content::replica.
bool is_counter(const std::string& name);

// Must be called between steps, on every rank. The state:
//   - Parameters, buffers and the optimizer's state belong to the replica. With a hook that lets replicas differ, each
//     rank's own are saved as well.
//   - An outer optimizer's state belongs to the replica and to each rank (OuterState).
//   - The state of the hook belongs to each rank.
//   - With a sharded optimizer, this is a collective, and only rank 0 gets the optimizer's state.
//   - Learning rate, data and random draws follow from the step; the manifest also contains the position in the data.
//
// The tensors are the training's own, not copies.
checkpoint::Content save_training(const TrainingParts& parts, const Counters& counters);
// The same with an earlier parts.model.state(), and without the state of a sharded optimizer. Not a collective.
checkpoint::Content save_without_shards(const TrainingParts& parts, const Counters& counters,
                                        const ReducerState& reducer);

// The part of that state that must have the same bits on all ranks between steps, if the hook keeps replicas equal: the
// parameters, and the state of optimizer and scaler. A sharded optimizer's state is left out: no two ranks of a node
// hold the same shard. Buffers may differ: each rank's batch norm buffers follow its own samples.
checkpoint::TensorMap replicated_state(const TrainingParts& parts);

// Restores a new training to the checkpoint's step, and returns its counters. The number of ranks may differ from the
// number that wrote the checkpoint, the former ranks (hooks::FormerRanks). Sources of this rank's state:
//   - The hook's state: the states of all former ranks that this rank gets.
//   - Parameters and optimizer, if replicas differ: the former rank with this rank's number, else former rank 0.
//   - With an outer optimizer, if the number of ranks or the groups changed: the outer parameters; optimizer, gradient
//     scaler and counters of former rank 0.
//
// Throws CorruptInputError naming the checkpoint and the part that is missing or does not fit.
//
// Leaves out the optimizer's state if `restored` has pieces of it. Then load_pieces follows.
Counters load_training(const checkpoint::Restored& restored, const TrainingParts& parts);

// A collective if there are restored.pieces: gives each rank the optimizer's state from the pieces of all ranks, its
// shard with second copies if it has some or, if the optimizer is not sharded any more, all of it. If
// restored.pieces_have_values, each rank also gets the parameters. Calls `have_own` once this rank has its pieces, and
// returns once all ranks have theirs. Throws c10::DistBackendError if a peer fails, and CorruptInputError.
void load_pieces(const checkpoint::Restored& restored, const TrainingParts& parts,
                 const std::function<void()>& have_own);

// Whether a range of a held state is of a parameter's values, not of the optimizer's state.
bool is_of_values(const pieces::Range& range);

// The shards of the optimizer's state that this rank holds; empty without shards. Not a collective.
std::optional<pieces::HeldPieces> held_pieces(const TrainingParts& parts);
// The same if other ranks hold all of them as well, with the same bits; else empty.
std::optional<pieces::HeldPieces> pieces_held_twice(const TrainingParts& parts);
// held_pieces with parameters, if there are second copies of shards: the elements that this rank has as they are after
// the last step, from `content`, which lies in other memory than the model. If an exchange has failed, these are the
// elements of the shards that it holds.
std::optional<pieces::HeldPieces> held_state(const TrainingParts& parts, const checkpoint::Content& content);
// Adds these elements of the parameters.
void add_values(const TrainingParts& parts, const checkpoint::Content& content, pieces::HeldPieces& held);

// The entries of Content::replica with that gradient scaler's state; none for null.
checkpoint::TensorMap scaler_state(const GradScaler* scaler);

}  // namespace narrowcast::training
