#include "trainer/train/options/model_rows.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <string>

#include <narrowcast/char_gpt.h>
#include <narrowcast/gpt.h>
#include <narrowcast/mlp.h>
#include <narrowcast/models.h>
#include "models/imported/script_model.h"
#include "models/table/model_table.h"

namespace narrowcast::options {

using program::variable;

namespace {

const models::CharGptOptions kCharGpt;
const models::GptOptions kGpt;
const models::MlpOptions kMlp;

std::string if_not_given(int64_t value) { return absl::StrCat(" (default ", value, ")"); }

std::string model_help() {
  return absl::StrCat(
      "Model: ", absl::StrJoin(models::learning_models(), ", "), ", ", absl::StrJoin(models::fixed_models(), ", "),
      " (to verify gradients only), a TorchScript module (*.pt) or a package (*.pt2), whose code is run.");
}

// A size of the model. All sizes together are one entry of the plan, "model_options".
Option size_row(Arguments& arguments, const std::string& name, int64_t usual, const std::string& help) {
  return {.flag = name,
          .variable = variable(arguments.job.model_options, name),
          .help = help,
          .usual = absl::StrCat(usual),
          .role = Role::kSetting,
          .verified = true};
}

std::vector<Option> size_rows(Arguments& arguments) {
  return {
      size_row(arguments, "layers", kCharGpt.layers,
               absl::StrCat("Transformer blocks of char_gpt and gpt", if_not_given(kGpt.layers),
                            ", or hidden layers of mlp", if_not_given(kMlp.layers), ".")),
      size_row(arguments, "heads", kCharGpt.heads,
               absl::StrCat("Attention heads of char_gpt and gpt (default of gpt: --width / ", kGpt.width / kGpt.heads,
                            "). They must divide --width.")),
      size_row(arguments, "width", kCharGpt.width,
               absl::StrCat("Elements of a token's hidden state in char_gpt and gpt", if_not_given(kGpt.width), ".")),
      size_row(arguments, "context", kCharGpt.context,
               absl::StrCat("Tokens of a sequence in char_gpt, gpt", if_not_given(kGpt.context),
                            " or a TorchScript module."))};
}

}  // namespace

std::vector<Option> model_rows(Arguments& arguments) {
  job::TrainJob& job = arguments.job;
  models::Regularization& regularization = job.regularization;
  const std::vector<Option> which = {
      {.flag = "model",
       .variable = variable(job.model),
       .help = model_help(),
       .in_plan = InPlan::kValue,
       .role = Role::kSetting,
       .verified = true},
      {.flag = "loss",
       .variable = variable(job.loss),
       .help = absl::StrCat("Loss of a TorchScript module that returns predictions: ", models::loss_names(),
                            ". A module with targets as input returns its loss."),
       .in_plan = InPlan::kComputed,
       .role = Role::kSetting,
       .verified = true},
      {.flag = "label_smoothing",
       .variable = variable(regularization.label_smoothing),
       .help = "Share of the target's probability that cross entropy spreads over all classes in training. A "
               "TorchScript module needs --loss=cross_entropy.",
       .range = share_below_one(),
       .in_plan = InPlan::kValue,
       .role = Role::kSetting,
       .planned = [&regularization] { return if_above_zero(regularization.label_smoothing); },
       .verified = true}};
  const std::vector<Option> beginning = {
      {.flag = "vocabulary",
       .variable = variable(job.vocabulary_size),
       .help = "Vocabulary size; token files must contain smaller tokens. Default: from --init_from, else the data. "
               "Required for a TorchScript module with token files.",
       .usual = "0",
       .role = Role::kSetting,
       .verified = true},
      {.flag = "dropout",
       .variable = variable(regularization.dropout),
       .help = "Share of embeddings, attention and block outputs that char_gpt and gpt drop in training. Each rank "
               "draws separately.",
       .range = share_below_one(),
       .in_plan = InPlan::kValue,
       .role = Role::kSetting,
       .planned = [&regularization] { return if_above_zero(regularization.dropout); },
       .verified = true},
      size_row(arguments, "hidden", kMlp.hidden, "Outputs of each hidden layer of mlp."),
      {.flag = "init_from",
       .variable = variable(job.init_from),
       .help = "Initial parameters: a *.safetensors file of a training or Hugging Face's GPT-2, or its index or "
               "folder. It determines the model's shape. Default: random.",
       .in_plan = InPlan::kValue,
       .verified = true,
       .resume_note = "may lie elsewhere; the same content"}};
  return joined({which, size_rows(arguments), beginning});
}

std::vector<Option> data_rows(Arguments& arguments) {
  job::TrainJob& job = arguments.job;
  return {{.flag = "data",
           .variable = variable(job.data),
           .help = "Paths, separated by commas (\\, in a path). char_gpt, gpt: text or token files; mlp: IDX files or "
                   "tensors. Default: Tiny Shakespeare.",
           .in_plan = InPlan::kComputed,
           .verified = true,
           .resume_note = "may lie elsewhere; the same content"},
          {.flag = "seed",
           .variable = variable(job.seed),
           .help = "Seed of the initial parameters, the order of the data, dropout and the sample.",
           .range = at_least(0),
           .in_plan = InPlan::kValue,
           .role = Role::kSetting,
           .verified = true}};
}

std::vector<Option> trained_model_rows(Arguments& arguments) {
  models::GenerateOptions& generation = arguments.generation;
  return {{.flag = "evaluate",
           .variable = variable(arguments.evaluate),
           .help = "Print a trained model's held-out loss instead of training. File: *.safetensors (of a package, "
                   "with --model=NET.pt2), a TorchScript module or a model package."},
          {.flag = "generate",
           .variable = variable(generation.count),
           .help = "With --evaluate: number of characters that a text model generates.",
           .range = at_least(0)},
          {.flag = "prompt",
           .variable = variable(arguments.prompt),
           .help = "With --generate: text to continue. Default: the beginning of a line."},
          {.flag = "temperature",
           .variable = variable(generation.temperature),
           .help = "With --generate: divisor of the logits; 0 always chooses the likeliest character.",
           .range = at_least(0)},
          {.flag = "top_k",
           .variable = variable(generation.top_k),
           .help = "With --generate: choose only among this number of likeliest characters; 0: among all.",
           .range = at_least(0)}};
}

}  // namespace narrowcast::options
