// Data-parallel training of a model.
//
// Each of the W ranks holds a replica. An optimizer step takes the next batch_size samples of an order that depends
// only on the seed (data/dataset.h); rank r computes the r-th of W contiguous parts, in accumulation_steps backward
// passes. The last pass exchanges the gradients through the communication hook, so that all ranks have the same mean
// over the batch. Then every rank clips and steps in the same way, and the replicas stay equal without sending
// parameters. All ranks skip a step whose gradients are not all finite, since they see the same gradients. (Exception:
// with the hook noop, replicas differ anyway.)
//
// With an outer optimizer (narrowcast/outer_optimizer.h), after the warm-up, the hook averages only in groups of ranks.
// Then every group takes and skips steps independently, and outer exchanges average the parameters of all groups.
// Evaluation and the result of the training use the outer parameters.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <narrowcast/ddp.h>
#include <narrowcast/model.h>
#include <narrowcast/outer_options.h>
#include <narrowcast/process_group.h>
#include "trainer/train/checkpoint/checkpoint_writer.h"
#include "trainer/train/checkpoint/manifest.h"
#include "trainer/train/data/dataset.h"
#include "trainer/train/reporting/progress.h"
#include "trainer/train/training/recovery.h"
#include "trainer/train/training/training_options.h"

namespace narrowcast::training {

// A signal that ended a training.
struct Preemption {
  int signal = 0;
  int64_t step = 0;       // the last step that was taken
  bool is_saved = false;  // whether there is a checkpoint of this step; not if this process took no step
};

// The results of a training.
struct TrainingResult {
  std::optional<double> validation_loss = {};      // after the last step; empty without evaluation
  std::optional<double> validation_accuracy = {};  // also after the last step, if the model counts right answers
  double training_loss = 0;                // mean over the ranks and the steps taken since the last report but one
  int64_t payload_bytes_sent = 0;          // by this rank
  int64_t payload_bytes_without_hook = 0;  // that this rank would have sent
  int64_t measuring_bytes_sent = 0;        // by this rank, in no other count; since the process began
  std::optional<double> compression = {};  // of the last step, see CommHook::compression
  int64_t peak_memory_bytes = 0;           // of the rank that has most; since its process began
  double seconds = 0;                      // without the evaluations
  int64_t skipped_steps = 0;               // for their gradients; equal on all ranks, except with an outer optimizer
  std::optional<reporting::OuterReport> outer = {};  // with an outer optimizer
  std::optional<int64_t> diverged_at = {};  // the step at which the loss was not finite, where training stopped
  std::optional<reporting::SkippedReport> gave_up_after = {};  // if it stopped for skipped steps in a row: those steps
  std::optional<double> best_validation_loss = {};             // with early_stop
  std::optional<int64_t> stopped_early_at = {};  // the step, if early_stop ended the training before the last one
  std::optional<Preemption> preempted = {};      // if a signal ended the training before the last step
  bool takes_in_newcomers = false;               // it ended before the last step, to go on with more ranks
};

// Checkpoints, with which a training survives its processes. Nothing is owned.
struct Checkpoints {
  checkpoint::CheckpointWriter* writer = nullptr;  // null: no checkpoints are written
  int64_t every = 100;                             // steps between checkpoints; one more is written after the last step
  checkpoint::Restored* restored = nullptr;        // to resume from it, empty afterwards; null: a new training
  bool is_reported = true;                         // RecoveredState::is_reported of `restored`; true for a checkpoint
  // To recover in place (recovery.h): when the training ends or throws c10::DistError, this rank's state is written
  // here, if it is recoverable (LastPoint::leave). Null: the training cannot recover in place.
  std::optional<SurvivingState>* surviving = nullptr;
  // The signal that asks this process to stop, else 0 (CaughtSignals::first). Once a rank is asked, all ranks write a
  // checkpoint after the same step, and stop. Must be given on all ranks or on none, and only with a writer.
  std::function<int()> asked_to_stop = {};
};

// The components of a training.
struct TrainingSetup {
  std::shared_ptr<models::Model> model;  // the same parameters on all ranks, on the computing device
  const data::Dataset& dataset;
  ProcessGroupPtr group;
  DdpOptions ddp = {};
  std::optional<OuterOptions> outer = {};           // none: all ranks take every step together
  OptimizerShards shards = OptimizerShards::kOff;   // kNode and kAll must be possible; not kAuto
  int64_t units_per_sample = 1;                     // tokens of a sequence, for units_per_second
  reporting::TrainingObserver* observer = nullptr;  // on one rank; not owned
  Checkpoints checkpoints = {};
};

// A collective: trains the model in place and returns the same on all ranks, except the time. If it resumes from a
// checkpoint with the same world, flags and threads, it ends with the same bits as without the interruption. Throws
// c10::ValueError as check_training_options does, c10::DistBackendError if a peer failed, CorruptInputError for a
// checkpoint of another training, and OutputError if a checkpoint cannot be written. Throws ReplicasDifferError if
// replicas that must be equal differ.
TrainingResult train(const TrainingSetup& setup, const TrainingOptions& options);

}  // namespace narrowcast::training
