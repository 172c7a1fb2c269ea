// `narrowcast-train --evaluate`: what a trained model is worth, and what it writes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <narrowcast/generation.h>
#include <narrowcast/process_group.h>
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
  // What a TorchScript module is: "char_gpt", a language model that sees `context` characters, or "mlp", a classifier
  // of images. A model file says it itself.
  std::string model = models::CharGpt::kName;
  int64_t context = 64;
  std::vector<std::string> data = {};  // as in TrainJob
  int64_t batch_size = 32;             // held-out samples of one forward pass over all ranks
  int64_t batches = 16;                // of these in the evaluation; 0: no evaluation, and no data
  GenerationJob generation = {};
  int64_t threads = 0;  // as in TrainJob
  ProcessGroupOptions group = {};
  bool dry_run = false;
};

// Loads the model, prints the loss on the held-out part of the data (the same samples as a training with the same
// data, batch size and batches) and then the text it generates. Rank 0 prints. Returns an exit code. Throws the three
// classes of errors that docs/errors.md tells apart; a rank whose file differs is one.
int run_evaluation_job(const EvaluationJob& job, const job::JobContext& context);

}  // namespace narrowcast::inference
