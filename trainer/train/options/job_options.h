// The structs of options of one call of narrowcast-train. The rows of option_table.h have the name and the meaning of
// each option.
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

// The output of a training.
struct OutputOptions {
  std::string folder = {};           // for the model's files and metrics.jsonl; empty: nothing is written
  bool overwrite = false;            // replace the files of an earlier training, and its checkpoints
  std::string restarted_run = {};    // the launcher's job that restarts, whose files may be replaced; or empty
  int64_t sample_length = 300;       // tokens that a text model generates at the end; 0: none
  std::string prometheus_file = {};  // rank 0 updates it (reporting::PrometheusFile); empty: none
  std::string tensorboard_dir = {};  // for rank 0's event file (reporting::TensorBoardEvents); empty: none
  std::string report = {};           // rank 0's page of metrics in `folder` (reporting::TrainingReport); empty: none
};

// How a training continues after its processes end.
struct CheckpointOptions {
  std::string folder = {};              // of the checkpoints; empty: none are written
  int64_t every = 100;                  // steps between them, >= 1
  int64_t keep = 2;                     // number of newest ones to keep, >= 0; 0: all
  bool resume = false;                  // from the newest valid one, if there is one
  std::string resume_from = {};         // the path of another one to resume from; empty: none
  std::string preemption_signals = {};  // like "SIGTERM,SIGUSR1": write one and end; empty: default actions
};

// All options of one call of narrowcast-train, except a call with --evaluate.
struct TrainJob {
  std::string version;                         // of the program
  std::string model = models::CharGpt::kName;  // or the path of a TorchScript module, whose code is run
  models::ModelOptions model_options = {};     // absent ones have the model's defaults; a module has only `context`
  std::string loss = {};       // of a module's predictions (models::parse_loss); empty: returned by the module
  std::string init_from = {};  // file of the first parameters (files::InitialState); empty: random ones
  models::Regularization regularization = {};   // for a model that supports it
  std::vector<std::string> data;                // files and folders; empty: Tiny Shakespeare
  std::optional<int64_t> vocabulary_size = {};  // of token files, as in data::DataRequest
  int64_t seed = 0;                             // >= 0; of the initial parameters, the order of the data and the sample
  std::string device = "cpu";                   // see choose_device
  int64_t threads = 0;        // of each rank; 0: OMP_NUM_THREADS, else the node's cores shared by its ranks
  ProcessGroupOptions group;  // its backend may be "auto" (choose_backend)
  DdpOptions ddp;
  training::TrainingOptions training;  // its seed is not used
  std::optional<OuterOptions> outer;   // given exactly with hooks that average in groups only
  OutputOptions output;
  CheckpointOptions checkpoints;
  std::optional<verification::VerificationOptions> verification;  // verify gradients instead of training
  bool dry_run = false;                                           // check everything, print the plan and end
};

// Whether all ranks hold the same bits after every step.
bool keeps_replicas_equal(const TrainJob& job);

// Throws c10::ValueError naming the flag unless the job has outer exchanges exactly with a hook that averages in
// groups, their options are valid, and they go together with the training's other options.
void check_outer_options(const TrainJob& job);

}  // namespace narrowcast::job
