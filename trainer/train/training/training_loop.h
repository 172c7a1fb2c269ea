// Data-parallel training of a model.
//
// Each of the W ranks holds a replica. An optimizer step takes the next batch_size samples of an order that depends on
// the seed alone (data/dataset.h); rank r computes the r-th of W contiguous parts, in accumulation_steps backward
// passes. The last of them exchanges the gradients through the communication hook, so that all ranks end with the same
// mean over the batch; then every rank clips and steps alike, and the replicas stay equal without sending a parameter.
// A step whose gradients are not all finite is left out by all ranks alike, as they see the same gradients (but with
// the hook noop, whose replicas differ anyway).
//
// With an outer optimizer (narrowcast/outer_optimizer.h) the hook averages in groups of ranks only, after the warm-up:
// then every group takes steps of its own, also leaves out such of its own, and the parameters of all meet in outer
// exchanges. What is evaluated, and what the training ends with, are the outer parameters.
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
#include "trainer/train/training/training_options.h"

namespace narrowcast::training {

// A signal that ended a training.
struct Preemption {
  int signal = 0;
  int64_t step = 0;       // the last that was taken
  bool is_saved = false;  // whether there is a checkpoint of this step; not if this process took none
};

// What a training ends with.
struct TrainingResult {
  std::optional<double> validation_loss;           // after the last step; none without evaluation
  std::optional<double> validation_accuracy = {};  // likewise, of a model that counts its right answers
  double training_loss = 0;                // mean over the ranks and the steps taken since the last report but one
  int64_t payload_bytes_sent = 0;          // by this rank
  int64_t payload_bytes_without_hook = 0;  // what it would have sent
  int64_t measuring_bytes_sent = 0;        // by this rank, in no other count; since the process began
  std::optional<double> compression;       // of the last step, see CommHook::compression
  double seconds = 0;                      // without the evaluations
  int64_t skipped_steps = 0;               // for their gradients; the same on all ranks, but with an outer optimizer
  std::optional<reporting::OuterReport> outer;  // with an outer optimizer
  std::optional<int64_t> diverged_at;           // the step by which the loss was not finite, where training stopped
  std::optional<reporting::SkippedReport> gave_up_after;  // where that was for skipped steps in a row: those
  std::optional<double> best_validation_loss;             // with early_stop
  std::optional<int64_t> stopped_early_at;   // the step, if early_stop ended the training before the last one
  std::optional<Preemption> preempted = {};  // if a signal ended the training before the last step
};

// How a training outlives its processes. Nothing is owned.
struct Checkpoints {
  checkpoint::CheckpointWriter* writer = nullptr;  // none: no checkpoints are written
  int64_t every = 100;                             // steps between them; one more comes after the last step
  checkpoint::Restored* restored = nullptr;        // from which to resume, empty afterwards; none: a new training
  // The signal that asks this process to stop, 0 if none does (CaughtSignals::first). Once a rank is asked, all ranks
  // write a checkpoint after the same step, and stop. Given on all ranks or on none, and only with a writer.
  std::function<int()> asked_to_stop = {};
};

// What a training works with.
struct TrainingSetup {
  std::shared_ptr<models::Model> model;  // the same parameters on all ranks, on the device that computes
  const data::Dataset& dataset;
  ProcessGroupPtr group;
  DdpOptions ddp = {};
  std::optional<OuterOptions> outer = {};           // none: every step is that of all ranks
  int64_t units_per_sample = 1;                     // tokens of a sequence, for units_per_second
  reporting::TrainingObserver* observer = nullptr;  // on one rank; not owned
  Checkpoints checkpoints = {};
};

// A collective: trains the model in place and returns the same on all ranks, but for the time. Where it resumes from a
// checkpoint of the same world, flags and threads it ends with the same bits as without the interruption. Throws
// c10::ValueError as check_training_options does, c10::DistBackendError if a peer failed, CorruptInputError for a
// checkpoint of something else, OutputError if one cannot be written, and ReplicasDifferError if ranks that must hold
// the same bits do not.
TrainingResult train(const TrainingSetup& setup, const TrainingOptions& options);

}  // namespace narrowcast::training
