#include "trainer/train/flags/train_flags.h"

#include <absl/flags/declare.h>
#include <absl/flags/flag.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <chrono>

#include "models/model_table.h"
#include "trainer/train/files/model_file.h"
#include "trainer/train/flags/worker_flags.h"
#include "trainer/train/training/device.h"

// Shared with a training.
ABSL_DECLARE_FLAG(std::string, model);
ABSL_DECLARE_FLAG(int64_t, context);
ABSL_DECLARE_FLAG(std::vector<std::string>, data);
ABSL_DECLARE_FLAG(int64_t, seed);
ABSL_DECLARE_FLAG(int64_t, batch_size);
ABSL_DECLARE_FLAG(int64_t, eval_batches);
ABSL_DECLARE_FLAG(std::string, backend);
ABSL_DECLARE_FLAG(bool, dry_run);

ABSL_FLAG(std::string, evaluate, "",
          "Instead of training, print the loss of a trained model on the held-out part of --data: a model file "
          "(*.safetensors), also a quantised one, or a TorchScript module (*.pt), whose code is run.");
ABSL_FLAG(int64_t, generate, 0, "With --evaluate: characters that a text model writes.");
ABSL_FLAG(std::string, prompt, "", "With --generate: the text to go on from; a line's beginning if there is none.");
ABSL_FLAG(double, temperature, 1, "With --generate: divides the logits; 0 takes the likeliest character.");
ABSL_FLAG(int64_t, top_k, 0, "With --generate: chooses among so many likeliest characters only; 0: among all.");

namespace narrowcast {
namespace {

const std::vector<std::string> kUsedByEvaluation = {
    "evaluate", "generate",   "prompt",  "temperature",     "top_k",   "data",    "seed",        "model",
    "context",  "batch_size", "backend", "timeout_seconds", "threads", "dry_run", "eval_batches"};

bool is_in(const std::vector<std::string>& flags, const std::string& flag) {
  return std::find(flags.begin(), flags.end(), flag) != flags.end();
}

// Every flag of the program that an evaluation does not use.
std::vector<std::string> other_flags() {
  std::vector<std::string> flags;
  for (const program::FlagGroup& group : train_description().groups) {
    for (const std::string& flag : group.flags) {
      if (!is_in(kUsedByEvaluation, flag) && !is_in(worker_flags(), flag)) {
        flags.push_back(flag);
      }
    }
  }
  return flags;
}

void refuse_useless_flags(const program::CommandLine& line, const std::string& file) {
  refuse(line, other_flags(), "with --evaluate");
  if (!file.ends_with(files::kScriptSuffix)) {
    refuse(line, {"model", "context"}, "with --evaluate=" + file + ", which says it itself");
  }
  if (absl::GetFlag(FLAGS_generate) == 0) {
    refuse(line, {"prompt", "temperature", "top_k", "seed"}, "with --evaluate but without --generate");
  }
  if (absl::GetFlag(FLAGS_eval_batches) == 0) {
    refuse(line, {"data", "batch_size"}, "with --eval_batches=0");
  }
}

// A TorchScript module does not say what it is.
void check_model(const program::CommandLine& line, const std::string& model) {
  const std::vector<std::string> known = models::learning_models();
  TORCH_CHECK_VALUE(is_in(known, model), "--model: a TorchScript module is evaluated as ", c10::Join(" or ", known),
                    ", not as ", model);
  if (!models::model_row(model).has_option("context")) {
    refuse(line, {"context"}, "with --model=" + model);
  }
}

}  // namespace

const std::vector<std::string>& evaluation_flags() {
  static const std::vector<std::string> flags = {"evaluate", "generate", "prompt", "temperature", "top_k"};
  return flags;
}

std::optional<inference::EvaluationJob> read_evaluation_job(const program::CommandLine& line) {
  const std::string file = absl::GetFlag(FLAGS_evaluate);
  if (file.empty()) {
    TORCH_CHECK_VALUE(!line.given("evaluate"), "--evaluate: must name a file");
    return std::nullopt;
  }
  refuse_useless_flags(line, file);
  check_model(line, absl::GetFlag(FLAGS_model));
  inference::EvaluationJob job;
  job.version = NARROWCAST_VERSION;
  job.file = file;
  job.model = absl::GetFlag(FLAGS_model);
  job.context = absl::GetFlag(FLAGS_context);
  job.data = absl::GetFlag(FLAGS_data);
  job.batch_size = absl::GetFlag(FLAGS_batch_size);
  job.batches = absl::GetFlag(FLAGS_eval_batches);
  job.generation = {.options = {.count = absl::GetFlag(FLAGS_generate),
                                .temperature = absl::GetFlag(FLAGS_temperature),
                                .top_k = absl::GetFlag(FLAGS_top_k)},
                    .prompt = absl::GetFlag(FLAGS_prompt),
                    .seed = absl::GetFlag(FLAGS_seed)};
  job.group.backend = training::choose_backend(absl::GetFlag(FLAGS_backend), at::kCPU);
  job.group.timeout = std::chrono::seconds(absl::GetFlag(FLAGS_timeout_seconds));
  job.threads = absl::GetFlag(FLAGS_threads);
  job.dry_run = absl::GetFlag(FLAGS_dry_run);
  return job;
}

}  // namespace narrowcast
