// One job of narrowcast-train, from what it is asked to do to the last line of its results. plan.h has its plan,
// job_checkpoints.h its checkpoints, training_job.h and verification_job.h what it does.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include <narrowcast/char_gpt.h>
#include <narrowcast/ddp_options.h>
#include <narrowcast/model.h>
#include <narrowcast/outer_options.h>
#include <narrowcast/process_group.h>
#include <narrowcast/worker_env.h>
#include "models/script_model.h"
#include "trainer/train/data/dataset.h"
#include "trainer/train/training/training_loop.h"
#include "trainer/train/verification/verify_gradients.h"

namespace narrowcast::files {
struct SavedScript;
}

namespace narrowcast::job {

// What is left behind by a training.
struct OutputOptions {
  std::string folder = {};           // for the model's files and metrics.jsonl; empty: nothing is written
  bool overwrite = false;            // replace the files of an earlier training, and its checkpoints
  std::string restarted_run = {};    // the launcher's job that starts again, whose own files may be replaced; or empty
  int64_t sample_length = 300;       // tokens that a text model writes at the end; 0: none
  std::string prometheus_file = {};  // that rank 0 keeps up to date (reporting::PrometheusFile); empty: none
  std::string tensorboard_dir = {};  // to which rank 0 adds an event file (reporting::TensorBoardEvents); likewise
  std::string report = {};           // a page that rank 0 writes of what is in `folder` (reporting::TrainingReport)
};

// How a training outlives its processes.
struct CheckpointOptions {
  std::string folder = {};              // of the checkpoints; empty: none are written
  int64_t every = 100;                  // steps between them, >= 1
  int64_t keep = 2;                     // newest ones that stay, >= 0; 0: all
  bool resume = false;                  // from the newest valid one, if there is one
  std::string resume_from = {};         // the path of one from which to resume otherwise
  std::string preemption_signals = {};  // like "SIGTERM,SIGUSR1": write one and end; empty: their actions stay
};

// Everything that one call of narrowcast-train is asked to do, but for --evaluate.
struct TrainJob {
  std::string version;                         // of the program
  std::string model = models::CharGpt::kName;  // or the path of a TorchScript module, whose code is run
  models::ModelOptions model_options = {};     // the others keep the model's defaults; of a module `context` alone
  std::string loss = {};                       // of a module's predictions (models::parse_loss); empty: it gives it
  std::string init_from = {};                  // file of the first parameters (files::InitialState); empty: random ones
  models::Regularization regularization = {};  // of what the model has
  std::vector<std::string> data;               // files and folders; empty: Tiny Shakespeare
  std::optional<int64_t> vocabulary_size = {};  // of token files, as in data::DataRequest
  int64_t seed = 0;                             // >= 0; of the initial parameters, the order of the data and the sample
  std::string device = "cpu";                   // see choose_device
  int64_t threads = 0;        // of each rank; 0: OMP_NUM_THREADS, else the node's cores shared by its ranks
  ProcessGroupOptions group;  // its backend may be "auto", as choose_backend has it
  DdpOptions ddp;
  training::TrainingOptions training;  // its seed is not used
  std::optional<OuterOptions> outer;   // with hooks that average in groups only, and only with them
  OutputOptions output;
  CheckpointOptions checkpoints;
  std::optional<verification::VerificationOptions> verification;  // verify gradients instead of training
  bool dry_run = false;                                           // check everything, print the plan and end
};

// The data and the model of a job, made to fit each other.
struct JobInputs {
  std::unique_ptr<data::Dataset> dataset;  // none for the reference task, whose batch is fixed
  std::shared_ptr<models::Model> model;
  std::shared_ptr<const files::SavedScript> script;   // that the model shares; null: a bundled one
  std::shared_ptr<models::ScriptModel> script_model;  // the model, if it is a TorchScript module; else null
  std::optional<uint64_t> script_hash;                // of its file
  std::optional<uint64_t> init_hash;                  // of the file of the first parameters; none: they are random
  std::optional<int64_t> init_context;                // of that file, if the model takes its first positions only
  at::Device device = at::kCPU;                       // where the model is trained
  std::string data_name;                              // what was read, for people
  std::optional<uint64_t> data_hash;                  // of the content of what was read
  std::vector<std::string> vocabulary;                // of a text, else empty
  std::optional<double> bigram_entropy;               // of a text, in nats
  std::string unit = "samples";                       // what a training is measured in: tokens or samples
  int64_t units_per_sample = 1;
  std::vector<std::string> warnings;  // a line each: what is allowed, but may not be meant
};

// Reads the data and makes the model, freshly initialised from the seed, or loads the TorchScript module, and gives it
// the parameters of job.init_from: the same on all ranks. Throws as data::read_data, files::load_script,
// files::read_initial_state and models::ScriptModel do, and c10::ValueError naming what is wrong with an option.
JobInputs make_inputs(const TrainJob& job);

// What that rank computes with first, on the CPU.
models::Batch first_batch(const TrainJob& job, const JobInputs& inputs, int64_t rank, int64_t world_size);

// Where a job writes and what it knows of its surroundings.
struct JobContext {
  WorkerEnv env;
  SessionEnv session;
  std::ostream& results;      // written on rank 0
  std::ostream& progress;     // written on rank 0
  bool progress_is_terminal;  // one updated line instead of plain ones
  // ProcessGroupOptions::on_silence, which ends the process. Null: silent ranks are noticed by the time-out.
  std::function<void(const std::string& why)> on_silence = {};
  // Ends the process at a second signal of CheckpointOptions::preemption_signals, with the code of the first
  // (CaughtSignals). Null: the second signal's default action does.
  void (*end_for_signal)(int first) = nullptr;
};

// A job that all ranks have agreed on.
struct AgreedJob {
  const TrainJob& job;
  const JobInputs& inputs;
  const nlohmann::json& plan;
  const ProcessGroupPtr& group;
  const JobContext& context;
};

// The options of a job's group that moves tensors on `device`: its backend may be "auto" before (choose_backend), its
// GPU is that one, and on_silence is the context's. Throws as choose_backend does.
ProcessGroupOptions group_options_on(at::Device device, ProcessGroupOptions options, const JobContext& context);

// Sets the number of threads of this rank: `threads`, or for 0 OMP_NUM_THREADS if it is set, else the node's cores
// shared by its ranks. Throws c10::ValueError for another value than 0..4096.
void set_threads(int64_t threads, const JobContext& context);

// Checks and reads all that one rank can by itself, joins the other ranks, compares the plans, and trains or verifies.
// Returns kSuccess, or kCheckFailed if gradients are not as they should be, the loss is not finite or the replicas
// differ at the end, or 128 plus the signal that ended the training with a checkpoint. Throws the classes of errors
// that docs/reference/errors.md tells apart.
int run_job(const TrainJob& job, const JobContext& context);

}  // namespace narrowcast::job
