// `narrowcast-train --evaluate`: evaluates a trained model, bundled or a TorchScript module, on data, and generates
// text with it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/generation.h>
#include <narrowcast/model.h>
#include <narrowcast/process_group.h>
#include "models/imported/imported_model.h"
#include "trainer/train/data/dataset.h"
#include "trainer/train/job/train_job.h"

namespace narrowcast::inference {

// Text to generate.
struct GenerationJob {
  models::GenerateOptions options = {.count = 0};  // count 0: no text
  std::string prompt = {};                         // in the model's characters; empty: the beginning of a line
  int64_t seed = 0;                                // >= 0
};

struct EvaluationJob {
  std::string version = {};  // of the program
  // A model file of narrowcast (*.safetensors), a TorchScript module (*.pt) or a model package (*.pt2). A model file of
  // a package's training is evaluated by the code of the package as_model.
  std::string file = {};
  // For a TorchScript module: the bundled model as which it is evaluated. That is, it takes this model's data, and its
  // logits must fit a vocabulary as this model's do. The path of the module or of a package: the data decide
  // (data::data_kind). A bundled model's file needs none.
  std::string as_model = models::CharGpt::kName;
  int64_t context = models::CharGptOptions().context;  // of a TorchScript module
  std::optional<models::Loss> loss = {};  // of a TorchScript module's predictions; none: its file's, or cross entropy
  std::vector<std::string> data = {};     // as in TrainJob
  std::optional<int64_t> vocabulary_size = {};  // of token files for a TorchScript module, as in data::DataRequest
  int64_t batch_size = 32;                      // held-out samples of one forward pass over all ranks
  int64_t batches = 16;                         // number of such batches; 0: no evaluation, and no data
  GenerationJob generation = {};
  int64_t threads = 0;  // as in TrainJob
  ProcessGroupOptions group = {};
  bool dry_run = false;
};

// A model read from a file, in evaluation mode.
struct LoadedModel {
  std::shared_ptr<models::Model> model;
  std::string name;                             // of the model, or EvaluationJob::as_model
  std::vector<std::string> vocabulary = {};     // of a text model, if the file contains it
  std::vector<at::Tensor> state = {};           // parameters and buffers
  std::optional<models::NextToken> next = {};   // of a text model that returns logits
  int64_t context = 0;                          // length of the samples, if the data is text
  std::optional<int64_t> vocabulary_size = {};  // of token files, if the file determines it
  std::optional<uint64_t> code_hash = {};       // of the file of a model package (files::hash_of_files)
  std::vector<std::string> warnings = {};       // one line each
};

// Loads the model at job.file according to its suffix. Throws c10::ValueError for another suffix, a file that cannot be
// read or a model that cannot be evaluated, CorruptInputError for a file that does not match its suffix.
LoadedModel load_for_evaluation(const EvaluationJob& job);

// Reads job.data; a text is read in the model's vocabulary. Throws as data::read_data does.
data::ReadData read_data(const EvaluationJob& job, const LoadedModel& loaded);

// Loads the model and prints the loss, and for classes the accuracy, on the held-out part of the data. The samples are
// those of a training with the same data, batch size and batches. Then prints the generated text. Rank 0 prints.
// Returns an exit code. Throws the three error classes of docs/reference/errors.md, also if a rank's file differs.
int run_evaluation_job(const EvaluationJob& job, const job::JobContext& context);

}  // namespace narrowcast::inference
