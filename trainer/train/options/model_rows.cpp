// The options of models, new and trained ones, and of the data.
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <string>

#include <narrowcast/char_gpt.h>
#include <narrowcast/gpt.h>
#include <narrowcast/mlp.h>
#include <narrowcast/models.h>
#include "models/model_table.h"
#include "models/script_model.h"
#include "trainer/train/options/option_rows.h"

namespace narrowcast::options {

using program::variable;

namespace {

const models::CharGptOptions kCharGpt;
const models::GptOptions kGpt;
const models::MlpOptions kMlp;

std::string if_not_given(int64_t value) { return absl::StrCat(" (", value, " if not given)"); }

std::string model_help() {
  return absl::StrCat("The model: ", absl::StrJoin(models::learning_models(), ", "), ", ",
                      absl::StrJoin(models::fixed_models(), ", "), " (to verify gradients only), or the path of a ",
                      "TorchScript module (*.pt), whose code is run: see docs/guide/your-model.md.");
}

// A size of the model, all of which are one entry of the plan, "model_options".
Option size_row(Arguments& arguments, const std::string& name, int64_t usual, const std::string& help) {
  return {.flag = name,
          .variable = variable(arguments.job.model_options, name),
          .help = help,
          .usual = absl::StrCat(usual),
          .role = Role::kSetting,
          .verified = true};
}

std::vector<Option> size_rows(Arguments& arguments) {
  return {size_row(arguments, "layers", kCharGpt.layers,
                   absl::StrCat("Transformer blocks of char_gpt, and gpt", if_not_given(kGpt.layers),
                                "; hidden layers of mlp", if_not_given(kMlp.layers), ".")),
          size_row(arguments, "heads", kCharGpt.heads,
                   absl::StrCat("Attention heads of char_gpt, and gpt (one for every ", kGpt.width / kGpt.heads,
                                " of --width if not given); must divide --width.")),
          size_row(arguments, "width", kCharGpt.width,
                   absl::StrCat("Elements of the hidden state of a token in char_gpt, and gpt",
                                if_not_given(kGpt.width), ".")),
          size_row(arguments, "context", kCharGpt.context,
                   absl::StrCat("Tokens that char_gpt, gpt", if_not_given(kGpt.context),
                                ", or a TorchScript module sees at once, the length of a sequence."))};
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
       .help = absl::StrCat("Of a TorchScript module that returns predictions: ", models::loss_names(),
                            ". One that takes targets, too, returns its loss itself."),
       .in_plan = InPlan::kComputed,
       .role = Role::kSetting,
       .verified = true},
      {.flag = "label_smoothing",
       .variable = variable(regularization.label_smoothing),
       .help = "The share of a target's probability that cross entropy spreads over all classes in "
               "training; with a TorchScript module it needs --loss=cross_entropy.",
       .range = share_below_one(),
       .in_plan = InPlan::kValue,
       .role = Role::kSetting,
       .planned = [&regularization] { return if_above_zero(regularization.label_smoothing); },
       .verified = true}};
  const std::vector<Option> beginning = {
      {.flag = "vocabulary",
       .variable = variable(job.vocabulary_size),
       .help = "How many different tokens there are: all in token files must be below it, and gpt may have more than a "
               "text needs. If not given --init_from says it, or the data, for which token files are read once. A "
               "TorchScript module, which does not say it, needs the flag for token files.",
       .usual = "0",
       .role = Role::kSetting,
       .verified = true},
      {.flag = "dropout",
       .variable = variable(regularization.dropout),
       .help = "The share of embeddings, of attention and of what blocks add that char_gpt and gpt leave "
               "out in training. Each rank draws for itself.",
       .range = share_below_one(),
       .in_plan = InPlan::kValue,
       .role = Role::kSetting,
       .planned = [&regularization] { return if_above_zero(regularization.dropout); },
       .verified = true},
      size_row(arguments, "hidden", kMlp.hidden, "Outputs of each of mlp's hidden layers."),
      {.flag = "init_from",
       .variable = variable(job.init_from),
       .help = "A file of the first parameters (*.safetensors): what a training wrote, for gpt also Hugging Face's "
               "GPT-2; or several, by their index (*.safetensors.index.json) or folder. It says what shape the model "
               "has; without it parameters are random.",
       .in_plan = InPlan::kValue,
       .verified = true,
       .resume_note = "may lie elsewhere; the same content"}};
  return joined({which, size_rows(arguments), beginning});
}

std::vector<Option> data_rows(Arguments& arguments) {
  job::TrainJob& job = arguments.job;
  return {
      {.flag = "data",
       .variable = variable(job.data),
       .help = "char_gpt, gpt: text files or folders of them, separated by commas (\\, is a comma in a path), or a "
               "folder of token files (train.bin, val.bin). mlp: a folder of MNIST-style IDX files, or of inputs and "
               "targets (train*.safetensors, train_inputs.npy). A TorchScript module: any. Without it the text is "
               "Tiny Shakespeare, which comes with narrowcast.",
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
  return {
      {.flag = "evaluate",
       .variable = variable(arguments.evaluate),
       .help = "Instead of training, print the loss of a trained model on the held-out part of --data: a model file "
               "(*.safetensors), also a quantised one, or a TorchScript module (*.pt), whose code is run."},
      {.flag = "generate",
       .variable = variable(generation.count),
       .help = "With --evaluate: characters that a text model writes.",
       .range = at_least(0)},
      {.flag = "prompt",
       .variable = variable(arguments.prompt),
       .help = "With --generate: the text to go on from; a line's beginning if there is none."},
      {.flag = "temperature",
       .variable = variable(generation.temperature),
       .help = "With --generate: divides the logits; 0 takes the likeliest character.",
       .range = at_least(0)},
      {.flag = "top_k",
       .variable = variable(generation.top_k),
       .help = "With --generate: chooses among so many likeliest characters only; 0: among all.",
       .range = at_least(0)}};
}

}  // namespace narrowcast::options
