// `narrowcast-train --evaluate`: what a trained model, a bundled one or a TorchScript module, is worth on some data,
// and what it writes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/generation.h>
#include <narrowcast/model.h>
#include <narrowcast/process_group.h>
#include "models/script_model.h"
#include "trainer/train/data/dataset.h"
#include "trainer/train/job/train_job.h"

namespace narrowcast::inference {

// Text to let the model write.
struct GenerationJob {
  models::GenerateOptions options = {.count = 0};  // count 0: none
  std::string prompt = {};                         // in the model's characters; empty: the beginning of a line
  int64_t seed = 0;                                // >= 0
};

struct EvaluationJob {
  std::string version = {};  // of the program
  std::string file = {};     // a model file of narrowcast (*.safetensors) or a TorchScript module (*.pt)
  // What a TorchScript module is: "char_gpt", a language model that sees `context` characters, "mlp", a classifier of
  // images, or, with its own path, what data::data_kind makes of the data. A model file says it itself.
  std::string model = models::CharGpt::kName;
  int64_t context = models::CharGptOptions().context;
  std::optional<models::Loss> loss = {};  // of a TorchScript module's predictions; none: its file's, or cross entropy
  std::vector<std::string> data = {};     // as in TrainJob
  std::optional<int64_t> vocabulary_size = {};  // of token files for a TorchScript module, as in data::DataRequest
  int64_t batch_size = 32;                      // held-out samples of one forward pass over all ranks
  int64_t batches = 16;                         // of these in the evaluation; 0: no evaluation, and no data
  GenerationJob generation = {};
  int64_t threads = 0;  // as in TrainJob
  ProcessGroupOptions group = {};
  bool dry_run = false;
};

// A model out of a file, in evaluation mode.
struct LoadedModel {
  std::shared_ptr<models::Model> model;
  std::string name;                            // of the data that it takes: "char_gpt", "mlp" or a module's path
  std::vector<std::string> vocabulary = {};    // of a text model, if the file holds it
  std::vector<at::Tensor> state = {};          // parameters and buffers
  std::optional<models::NextToken> next = {};  // of a text model that gives logits
};

// Loads the model that job.file is by its suffix. Throws c10::ValueError for another suffix, a file that cannot be read
// or a model that cannot be evaluated, CorruptInputError for a file that is not what its suffix says.
LoadedModel load_for_evaluation(const EvaluationJob& job);

// Reads job.data, a text in the model's vocabulary. Throws as data::read_data does.
data::ReadData read_data(const EvaluationJob& job, const LoadedModel& loaded);

// Loads the model, prints the loss, and of classes the accuracy, on the held-out part of the data (the same samples as
// a training with the same data, batch size and batches) and then the text it generates. Rank 0 prints. Returns an exit
// code. Throws the three classes of errors that docs/errors.md tells apart; a rank whose file differs is one.
int run_evaluation_job(const EvaluationJob& job, const job::JobContext& context);

}  // namespace narrowcast::inference
