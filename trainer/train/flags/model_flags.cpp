#include "trainer/train/flags/model_flags.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include <narrowcast/models.h>
#include <narrowcast/version.h>
#include "models/imported/script_model.h"
#include "models/table/model_table.h"
#include "trainer/train/data/dataset.h"
#include "trainer/train/files/foreign_model.h"
#include "trainer/train/files/model_file.h"
#include "trainer/train/flags/worker_flags.h"
#include "trainer/train/optimization/device.h"
#include "trainer/train/options/option_table.h"

namespace narrowcast {
namespace {

// The flags of an evaluation: its own, and the ones that it shares with a training.
std::vector<std::string> used_by_evaluation() {
  std::vector<std::string> flags = options::flags_of(options::Group::kTrainedModel);
  flags.insert(flags.end(), {"data", "seed", "model", "loss", "context", "batch_size", "backend", "timeout_seconds",
                             "silence_seconds", "threads", "dry_run", "eval_batches", "vocabulary"});
  return flags;
}

constexpr const char* kVocabularySize = "vocabulary_size";

bool is_in(const std::vector<std::string>& flags, const std::string& flag) {
  return std::find(flags.begin(), flags.end(), flag) != flags.end();
}

// The model package whose code is evaluated; empty without one.
std::string evaluated_package(const Given& given, const std::string& file) {
  const std::string& model = given.arguments.job.model;
  if (given.has("model") && models::is_package(model) && file.ends_with(files::kModelSuffix)) {
    return model;
  }
  return models::is_package(file) ? file : "";
}

void refuse_useless_flags(const Given& given, const std::string& file) {
  refuse_all_but(given, used_by_evaluation(), "with --evaluate");
  const std::string package = evaluated_package(given, file);
  if (!file.ends_with(files::kScriptSuffix)) {
    const std::string reason = " of " + (package.empty() ? file : package) + ", which determines it";
    refuse(given, {"context", "loss", "vocabulary"}, "with --evaluate" + reason);
    if (package.empty() || package == file) {
      refuse(given, {"model"}, "with --evaluate" + reason);
    }
  } else if (!data::holds_tokens(given.arguments.job.data)) {
    refuse(given, {"vocabulary"}, "without token files");
  }
  if (given.arguments.generation.count == 0) {
    refuse(given, {"prompt", "temperature", "top_k", "seed"}, "with --evaluate but without --generate");
  }
  if (given.arguments.job.training.eval_batches == 0) {
    refuse(given, {"data", "batch_size", "vocabulary"}, "with --eval_batches=0");
  }
}

// EvaluationJob::as_model: --model or, for a model package, and for a TorchScript module without --model, its path, so
// that the data decide.
std::string evaluated_model(const Given& given, const std::string& file) {
  if (const std::string package = evaluated_package(given, file); !package.empty()) {
    return package;
  }
  if (!given.has("model") && models::is_script(file)) {
    return file;
  }
  const std::string& model = given.arguments.job.model;
  const std::vector<std::string> known = models::learning_models();
  TORCH_CHECK_VALUE(is_in(known, model), "--model: a TorchScript module can be evaluated as ", c10::Join(" or ", known),
                    ", not as ", model);
  return model;
}

// A package was compiled with its loss, and computes in the dtypes of its example.
void refuse_flags_of_compiled_code(const Given& given, const std::string& reason) {
  refuse(given, {"loss", "label_smoothing"}, reason + ", which contains its loss: give it to export()");
  if (given.arguments.job.training.precision != training::Precision::kFp32) {
    refuse(given, {"precision"}, reason + ", which is compiled");
  }
}

void refuse_other_datas_flags(const Given& given, const models::ModelRow& model) {
  if (data::holds_tokens(given.arguments.job.data)) {
    refuse(given, {"sample_length"}, "with token files, which contain no characters");
  } else if (!model.is_gpt2) {
    refuse(given, {"vocabulary"}, "without token files");
  }
}

void refuse_context_of_images(const Given& given, const std::string& model) {
  if (given.has("context") && data::data_kind(model, given.arguments.job.data) != models::DataKind::kText) {
    refuse(given, {"context"}, models::is_imported(model) ? "with images and other tensors" : "with --model=" + model);
  }
}

}  // namespace

const models::ModelRow& given_model(const Given& given) {
  const std::string& name = given.arguments.job.model;
  std::error_code ignored;  // A file that cannot be looked up counts as missing.
  if (!models::is_imported(name) && !is_in(models::model_names(), name) &&
      std::filesystem::is_regular_file(name, ignored)) {
    const std::string foreign = files::describe_foreign_model(name);
    TORCH_CHECK_VALUE(false, "--model: ", name, " must be named *", files::kScriptSuffix,
                      " to be read as a TorchScript module, or *", files::kPackageSuffix, " as a model package",
                      foreign.empty() ? "" : ": " + foreign);
  }
  return models::any_model_row(name);
}

void refuse_other_models_options(const Given& given) {
  const std::string& name = given.arguments.job.model;
  const models::ModelRow& model = given_model(given);
  const std::string reason = "with --model=" + name;
  if (!model.learns()) {
    refuse(given, {"layers", "data", "batch_size", "init_from", "label_smoothing"}, reason + ", whose task is fixed");
    if (!given.has("stochastic_rounding")) {
      refuse(given, {"seed"}, reason + ", whose task is fixed");
    }
  }
  for (const auto& [size, value] : given.arguments.job.model_options) {
    if (!model.has_option(size)) {
      refuse(given, {size}, reason);
    }
  }
  if (model.data != models::DataKind::kText) {
    refuse(given, {"sample_length", "dropout"}, reason);
  }
  if (models::is_package(name)) {
    refuse_flags_of_compiled_code(given, reason);
  } else if (!models::is_script(name)) {
    refuse(given, {"loss"}, reason);
  } else if (given.arguments.job.loss != models::to_string(models::Loss::kCrossEntropy)) {
    refuse(given, {"label_smoothing"}, reason + " but without --loss=cross_entropy");
  }
  TORCH_CHECK_VALUE(!given.has("init_from") || !given.arguments.job.init_from.empty(), "--init_from: must name a file");
  refuse_context_of_images(given, name);
  refuse_other_datas_flags(given, model);
}

models::ModelOptions read_model_options(const Given& given) {
  const models::ModelRow& model = given_model(given);
  models::ModelOptions options = given.arguments.job.model_options;
  if (given.arguments.job.vocabulary_size) {
    options[kVocabularySize] = *given.arguments.job.vocabulary_size;
  }
  std::erase_if(options, [&](const auto& option) { return !model.has_option(option.first); });
  return options;
}

std::optional<inference::EvaluationJob> read_evaluation_job(const Given& given) {
  const std::string& file = given.arguments.evaluate;
  if (file.empty()) {
    TORCH_CHECK_VALUE(!given.has("evaluate"), "--evaluate: must name a file");
    return std::nullopt;
  }
  refuse_useless_flags(given, file);
  options::Arguments arguments = given.arguments;
  options::check_ranges(options::all_options(arguments));
  const job::TrainJob& asked = given.arguments.job;
  inference::EvaluationJob job;
  job.version = version();
  job.file = file;
  job.as_model = evaluated_model(given, file);
  refuse_context_of_images(given, job.as_model);
  if (const auto context = asked.model_options.find("context"); context != asked.model_options.end()) {
    job.context = context->second;
  }
  if (given.has("loss")) {
    job.loss = models::parse_loss(asked.loss);
  }
  job.data = asked.data;
  job.vocabulary_size = asked.vocabulary_size;
  job.batch_size = asked.training.batch_size;
  job.batches = asked.training.eval_batches;
  job.generation = {.options = given.arguments.generation, .prompt = given.arguments.prompt, .seed = asked.seed};
  job.group = asked.group;
  job.group.backend = training::choose_backend(asked.group.backend, at::kCPU);
  check_patience(given.line, job.group);
  job.threads = asked.threads;
  job.dry_run = asked.dry_run;
  return job;
}

}  // namespace narrowcast
