// One job of narrowcast-train, from its options to the last line of its results. Its plan is in plan.h, its
// checkpoints are in job_checkpoints.h. The two kinds of jobs are in training_job.h and verification_job.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include <narrowcast/model.h>
#include <narrowcast/process_group.h>
#include <narrowcast/worker_env.h>
#include "models/imported/imported_model.h"
#include "trainer/base/process/signals.h"
#include "trainer/train/data/dataset.h"
#include "trainer/train/options/job_options.h"
#include "trainer/train/training/recovery.h"
#include "trainer/train/training/training_loop.h"

namespace narrowcast::files {
struct SavedScript;
}

namespace narrowcast::job {

// The data and the model of a job, made to fit each other.
struct JobInputs {
  std::unique_ptr<data::Dataset> dataset;  // null for the reference task, whose batch is fixed
  std::shared_ptr<models::Model> model;
  std::shared_ptr<models::ImportedModel> imported;   // the model, if it is from a file; null: a bundled model
  std::shared_ptr<const files::SavedScript> script;  // shared with the model; null: not a TorchScript module
  std::optional<uint64_t> file_hash;                 // of the model's file
  std::optional<uint64_t> init_hash;                 // of the file of the first parameters; empty: random parameters
  std::optional<int64_t> init_context;               // of that file, if the model uses only its first positions
  at::Device device = at::kCPU;                      // where the model is trained
  std::string data_name;                             // of the data that were read, for people
  std::optional<uint64_t> data_hash;                 // of their content
  std::vector<std::string> vocabulary;               // of a text, else empty
  std::optional<double> bigram_entropy;              // of a text, in nats
  std::string unit = "samples";                      // in which a training is measured: tokens or samples
  int64_t units_per_sample = 1;
  std::vector<std::string> warnings;  // one line each: options that are allowed, but may be a mistake
};

// Reads the data. Makes the model, initialised from the seed, or loads the TorchScript module or the model package, and
// gives it the parameters of job.init_from. The result is the same on all ranks. Throws as data::read_data,
// files::load_script, models::read_package, files::read_initial_state and models::ScriptModel do, and c10::ValueError
// naming an option and what is wrong with it.
JobInputs make_inputs(const TrainJob& job);

// The first batch of that rank, on the CPU.
models::Batch first_batch(const TrainJob& job, const JobInputs& inputs, int64_t rank, int64_t world_size);

// A job's output streams and environment.
struct JobContext {
  WorkerEnv env;
  SessionEnv session;
  std::ostream& results;      // written on rank 0
  std::ostream& progress;     // written on rank 0
  bool progress_is_terminal;  // one updated line instead of plain ones
  // ProcessGroupOptions::on_silence, which ends the process. Null: only time-outs detect lost ranks.
  std::function<void(const std::string& why)> on_silence = {};
  // Ends the process at a second signal of CheckpointOptions::preemption_signals, with the code of the first
  // (CaughtSignals). Null: the second signal's default action does.
  void (*end_for_signal)(int first) = nullptr;
};

// How this process recovers in place (training/recovery.h).
struct InPlaceRecovery {
  std::optional<training::SurvivingState> surviving = {};  // of this rank, from the last training that failed
  std::optional<training::RecoveredState> recovered = {};  // from which the training goes on; empty at its start
  std::optional<std::chrono::steady_clock::time_point> interrupted_at = {};  // recovery::Attempt
  std::string why_nothing = {};              // share_states found no state in the ranks' memory, because of this
  std::function<void()> make_inputs = {};    // makes model and data anew: nobody has the state of the last training
  std::function<bool()> has_newcomers = {};  // has_newcomers (change_watch.h) of the present group
  std::function<void()> keep_newcomers_out = {};       // keep_newcomers_out of the same
  std::function<void(int64_t)> let_ranks_divide = {};  // let_ranks_divide of the same
  bool has_agreed = false;                             // this process has been in a group of ranks with equal plans
  bool has_placed_shards = false;                   // this process has been in a group that has placed the job's shards
  bool regroups = false;                            // the training has stopped to take newcomers in
  std::unique_ptr<CaughtSignals> caught = nullptr;  // the signals for preemption, which must not be forgotten meanwhile

  // The last step that this rank has done in its last training; -1: unknown.
  int64_t step() const { return surviving ? surviving->content.step : -1; }
};

// A job that all ranks have agreed on.
struct AgreedJob {
  const TrainJob& job;
  const JobInputs& inputs;
  const nlohmann::json& plan;
  const ProcessGroupPtr& group;
  const JobContext& context;
  InPlaceRecovery* recovery = nullptr;  // null: this process does not recover in place
};

// The options of a job's group for tensors on `device`. Replaces a backend "auto" (choose_backend), and sets the GPU
// and the context's on_silence. Throws as choose_backend does.
ProcessGroupOptions group_options_on(at::Device device, ProcessGroupOptions options, const JobContext& context);

// Sets the number of threads of this rank: `threads`, or for 0 OMP_NUM_THREADS if it is set, else the node's cores
// shared by its ranks. Throws c10::ValueError for another value than 0..4096.
void set_threads(int64_t threads, const JobContext& context);

// A warning of `buffers` that the file at `path` lacks: files::load_initial_state has kept those of `model`.
std::string kept_buffers_text(const std::string& option, const std::string& path,
                              const std::vector<std::string>& buffers, const std::string& model);

// Rank 0 prints the warnings, one line each.
void print_warnings(const std::vector<std::string>& warnings, const JobContext& context);

// Makes all checks that one rank can make alone, reads the inputs, joins the other ranks, compares the plans, and
// trains or verifies. With WorkerEnv::recovers_in_place, it joins them again when a rank was lost, and goes on.
// Returns:
//   - kSuccess,
//   - kCheckFailed if gradients fail their verification, the loss is not finite or the replicas differ at the end,
//   - 128 plus the signal that ended the training with a checkpoint.
// Throws the classes of errors in docs/reference/errors.md.
int run_job(const TrainJob& job, const JobContext& context);

}  // namespace narrowcast::job
