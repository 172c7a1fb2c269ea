// What one call of narrowcast-train is asked to do, as structs of options. The rows of option_table.h say what each is
// called and means.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/char_gpt.h>
#include <narrowcast/ddp_options.h>
#include <narrowcast/model.h>
#include <narrowcast/outer_options.h>
#include <narrowcast/process_group.h>
#include "trainer/train/training/training_options.h"
#include "trainer/train/verification/verify_gradients.h"

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

// Whether all ranks hold the same bits after every step.
bool keeps_replicas_equal(const TrainJob& job);

}  // namespace narrowcast::job
