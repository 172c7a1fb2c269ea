#include "trainer/train/flags/train_flags.h"

#include <absl/flags/declare.h>
#include <absl/flags/flag.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <system_error>

#include <narrowcast/char_gpt.h>
#include <narrowcast/gpt.h>
#include <narrowcast/mlp.h>
#include <narrowcast/models.h>
#include "models/model_table.h"
#include "models/script_model.h"
#include "trainer/base/program/path_list.h"
#include "trainer/train/data/dataset.h"
#include "trainer/train/files/foreign_model.h"
#include "trainer/train/files/model_file.h"
#include "trainer/train/flags/worker_flags.h"
#include "trainer/train/optimization/device.h"

// Shared with a training.
ABSL_DECLARE_FLAG(narrowcast::program::PathList, data);
ABSL_DECLARE_FLAG(int64_t, seed);
ABSL_DECLARE_FLAG(int64_t, batch_size);
ABSL_DECLARE_FLAG(int64_t, eval_batches);
ABSL_DECLARE_FLAG(std::string, backend);
ABSL_DECLARE_FLAG(bool, dry_run);

namespace {

const narrowcast::models::CharGptOptions kCharGpt;
const narrowcast::models::GptOptions kGpt;
const narrowcast::models::MlpOptions kMlp;

std::string model_help() {
  namespace models = narrowcast::models;
  return absl::StrCat("The model: ", c10::Join(", ", models::learning_models()), ", ",
                      c10::Join(", ", models::fixed_models()), " (to verify gradients only), or the path of a ",
                      "TorchScript module (*.pt), whose code is run: see docs/guide/your-model.md.");
}

std::string if_not_given(int64_t value) { return absl::StrCat(" (", value, " if not given)"); }

}  // namespace

ABSL_FLAG(std::string, model, narrowcast::models::CharGpt::kName, model_help());
ABSL_FLAG(std::string, loss, "",
          absl::StrCat("Of a TorchScript module that returns predictions: ", narrowcast::models::loss_names(),
                       ". One that takes targets, too, returns its loss itself."));
ABSL_FLAG(double, label_smoothing, 0,
          "The share of a target's probability, 0 to below 1, that cross entropy spreads over all classes in training; "
          "with a TorchScript module it needs --loss=cross_entropy.");
ABSL_FLAG(int64_t, layers, kCharGpt.layers,
          absl::StrCat("Transformer blocks of char_gpt, and gpt", if_not_given(kGpt.layers), "; hidden layers of mlp",
                       if_not_given(kMlp.layers), "."));
ABSL_FLAG(int64_t, heads, kCharGpt.heads,
          absl::StrCat("Attention heads of char_gpt, and gpt (one for every ", kGpt.width / kGpt.heads,
                       " of --width if not given); must divide --width."));
ABSL_FLAG(int64_t, width, kCharGpt.width,
          absl::StrCat("Elements of the hidden state of a token in char_gpt, and gpt", if_not_given(kGpt.width), "."));
ABSL_FLAG(int64_t, context, kCharGpt.context,
          absl::StrCat("Tokens that char_gpt, gpt", if_not_given(kGpt.context),
                       ", or a TorchScript module sees at once, the length of a sequence."));
ABSL_FLAG(int64_t, vocabulary, 0,
          "How many different tokens there are: all in token files must be below it, and gpt may have more than a text "
          "needs. If not given --init_from says it, or the data, for which token files are read once. A TorchScript "
          "module, which "
          "does not say it, needs the flag for token files.");
ABSL_FLAG(double, dropout, 0,
          "The share, 0 to below 1, of embeddings, of attention and of what blocks add that char_gpt and gpt leave out "
          "in training. Each rank draws for itself.");
ABSL_FLAG(int64_t, hidden, kMlp.hidden, "Outputs of each of mlp's hidden layers.");
ABSL_FLAG(
    std::string, init_from, "",
    "A file of the first parameters (*.safetensors): what a training wrote, for gpt also Hugging Face's GPT-2; or "
    "several, by their index (*.safetensors.index.json) or folder. "
    "It says what shape the model has; without it parameters are random.");

ABSL_FLAG(std::string, evaluate, "",
          "Instead of training, print the loss of a trained model on the held-out part of --data: a model file "
          "(*.safetensors), also a quantised one, or a TorchScript module (*.pt), whose code is run.");
ABSL_FLAG(int64_t, generate, 0, "With --evaluate: characters that a text model writes.");
ABSL_FLAG(std::string, prompt, "", "With --generate: the text to go on from; a line's beginning if there is none.");
ABSL_FLAG(double, temperature, 1,
          "With --generate: divides the logits; at least 0, which takes the likeliest character.");
ABSL_FLAG(int64_t, top_k, 0, "With --generate: chooses among so many likeliest characters only; 0: among all.");

namespace narrowcast {
namespace {

// Those of an evaluation alone, and those that it shares with a training.
std::vector<std::string> used_by_evaluation() {
  std::vector<std::string> flags = evaluation_flags();
  flags.insert(flags.end(), {"data", "seed", "model", "loss", "context", "batch_size", "backend", "timeout_seconds",
                             "silence_seconds", "threads", "dry_run", "eval_batches", "vocabulary"});
  return flags;
}

constexpr const char* kVocabularySize = "vocabulary_size";

// The flags that shape models, by the options that they are.
const std::map<std::string, const absl::Flag<int64_t>*> kShapeFlags = {{"layers", &FLAGS_layers},
                                                                       {"heads", &FLAGS_heads},
                                                                       {"width", &FLAGS_width},
                                                                       {"context", &FLAGS_context},
                                                                       {kVocabularySize, &FLAGS_vocabulary},
                                                                       {"hidden", &FLAGS_hidden}};

std::string flag_of(const std::string& option) { return option == kVocabularySize ? "vocabulary" : option; }

bool is_in(const std::vector<std::string>& flags, const std::string& flag) {
  return std::find(flags.begin(), flags.end(), flag) != flags.end();
}

void refuse_useless_flags(const program::CommandLine& line, const std::string& file) {
  refuse_all_but(line, used_by_evaluation(), "with --evaluate");
  if (!file.ends_with(files::kScriptSuffix)) {
    refuse(line, {"model", "context", "loss", "vocabulary"}, "with --evaluate=" + file + ", which says it itself");
  } else if (!data::holds_tokens(absl::GetFlag(FLAGS_data).paths)) {
    refuse(line, {"vocabulary"}, "without token files");
  }
  if (absl::GetFlag(FLAGS_generate) == 0) {
    refuse(line, {"prompt", "temperature", "top_k", "seed"}, "with --evaluate but without --generate");
  }
  if (absl::GetFlag(FLAGS_eval_batches) == 0) {
    refuse(line, {"data", "batch_size", "vocabulary"}, "with --eval_batches=0");
  }
}

// What the file is: what --model says or, of a TorchScript module, the data do.
std::string evaluated_model(const program::CommandLine& line, const std::string& file) {
  if (!line.given("model") && models::is_script(file)) {
    return file;
  }
  const std::string model = absl::GetFlag(FLAGS_model);
  const std::vector<std::string> known = models::learning_models();
  TORCH_CHECK_VALUE(is_in(known, model), "--model: a TorchScript module is evaluated as ", c10::Join(" or ", known),
                    ", not as ", model);
  return model;
}

void refuse_other_datas_flags(const program::CommandLine& line, const models::ModelRow& model) {
  if (data::holds_tokens(absl::GetFlag(FLAGS_data).paths)) {
    refuse(line, {"sample_length"}, "with token files, which say nothing of characters");
  } else if (!model.is_gpt2) {
    refuse(line, {"vocabulary"}, "without token files");
  }
}

void refuse_context_of_images(const program::CommandLine& line, const std::string& model) {
  if (line.given("context") && data::data_kind(model, absl::GetFlag(FLAGS_data).paths) != models::DataKind::kText) {
    refuse(line, {"context"}, models::is_script(model) ? "with images and other tensors" : "with --model=" + model);
  }
}

}  // namespace

void refuse_all_but(const program::CommandLine& line, const std::vector<std::string>& used, const std::string& reason) {
  for (const program::FlagGroup& group : train_description().groups) {
    for (const std::string& flag : group.flags) {
      if (!is_in(used, flag) && !is_in(worker_flags(), flag)) {
        refuse(line, {flag}, reason);
      }
    }
  }
}

const std::vector<std::string>& evaluation_flags() {
  static const std::vector<std::string> flags = {"evaluate", "generate", "prompt", "temperature", "top_k"};
  return flags;
}

const std::vector<std::string>& model_flags() {
  static const std::vector<std::string> flags = {"model",   "loss",   "label_smoothing", "layers",
                                                 "heads",   "width",  "context",         "vocabulary",
                                                 "dropout", "hidden", "init_from"};
  return flags;
}

const models::ModelRow& given_model() {
  const std::string name = absl::GetFlag(FLAGS_model);
  std::error_code ignored;  // What cannot be looked up is not there.
  if (!models::is_script(name) && !is_in(models::model_names(), name) &&
      std::filesystem::is_regular_file(name, ignored)) {
    const std::string foreign = files::describe_foreign_model(name);
    TORCH_CHECK_VALUE(false, "--model: ", name, " is not named *", files::kScriptSuffix, ", as a TorchScript module is",
                      foreign.empty() ? "" : ": " + foreign);
  }
  return models::any_model_row(name);
}

void refuse_other_models_options(const program::CommandLine& line) {
  const std::string name = absl::GetFlag(FLAGS_model);
  const models::ModelRow& model = given_model();
  const std::string reason = "with --model=" + name;
  if (!model.learns()) {
    refuse(line, {"layers", "data", "batch_size", "init_from", "label_smoothing"}, reason + ", whose task is fixed");
    if (!line.given("stochastic_rounding")) {
      refuse(line, {"seed"}, reason + ", whose task is fixed");
    }
  }
  for (const auto& [option, flag] : kShapeFlags) {
    if (!model.has_option(option) && option != kVocabularySize) {
      refuse(line, {flag_of(option)}, reason);
    }
  }
  if (model.data != models::DataKind::kText) {
    refuse(line, {"sample_length", "dropout"}, reason);
  }
  if (!models::is_script(name)) {
    refuse(line, {"loss"}, reason);
  } else if (absl::GetFlag(FLAGS_loss) != models::to_string(models::Loss::kCrossEntropy)) {
    refuse(line, {"label_smoothing"}, reason + " but without --loss=cross_entropy");
  }
  TORCH_CHECK_VALUE(!line.given("init_from") || !absl::GetFlag(FLAGS_init_from).empty(),
                    "--init_from: must name a file");
  refuse_context_of_images(line, name);
  refuse_other_datas_flags(line, model);
}

models::ModelOptions read_model_options(const program::CommandLine& line) {
  const models::ModelRow& model = given_model();
  models::ModelOptions options;
  for (const auto& [option, flag] : kShapeFlags) {
    if (line.given(flag_of(option)) && model.has_option(option)) {
      options[option] = absl::GetFlag(*flag);
    }
  }
  return options;
}

std::optional<int64_t> given_vocabulary_size(const program::CommandLine& line) {
  return line.given("vocabulary") ? std::optional(absl::GetFlag(FLAGS_vocabulary)) : std::nullopt;
}

std::optional<inference::EvaluationJob> read_evaluation_job(const program::CommandLine& line) {
  const std::string file = absl::GetFlag(FLAGS_evaluate);
  if (file.empty()) {
    TORCH_CHECK_VALUE(!line.given("evaluate"), "--evaluate: must name a file");
    return std::nullopt;
  }
  refuse_useless_flags(line, file);
  inference::EvaluationJob job;
  job.version = NARROWCAST_VERSION;
  job.file = file;
  job.model = evaluated_model(line, file);
  refuse_context_of_images(line, job.model);
  job.context = absl::GetFlag(FLAGS_context);
  if (line.given("loss")) {
    job.loss = models::parse_loss(absl::GetFlag(FLAGS_loss));
  }
  job.data = absl::GetFlag(FLAGS_data).paths;
  job.vocabulary_size = given_vocabulary_size(line);
  job.batch_size = absl::GetFlag(FLAGS_batch_size);
  job.batches = absl::GetFlag(FLAGS_eval_batches);
  job.generation = {.options = {.count = absl::GetFlag(FLAGS_generate),
                                .temperature = absl::GetFlag(FLAGS_temperature),
                                .top_k = absl::GetFlag(FLAGS_top_k)},
                    .prompt = absl::GetFlag(FLAGS_prompt),
                    .seed = absl::GetFlag(FLAGS_seed)};
  job.group.backend = training::choose_backend(absl::GetFlag(FLAGS_backend), at::kCPU);
  read_patience(line, job.group);
  job.threads = absl::GetFlag(FLAGS_threads);
  job.dry_run = absl::GetFlag(FLAGS_dry_run);
  return job;
}

}  // namespace narrowcast
