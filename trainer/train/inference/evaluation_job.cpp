#include "trainer/train/inference/evaluation_job.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <utility>

#include <narrowcast/consensus.h>
#include "models/imported/package_model.h"
#include "models/imported/script_model.h"
#include "models/table/model_table.h"
#include "ops/common/text.h"
#include "trainer/base/program/failure.h"
#include "trainer/train/data/text_corpus.h"
#include "trainer/train/files/model_file.h"
#include "trainer/train/files/script_file.h"
#include "trainer/train/files/weight_files.h"
#include "trainer/train/job/peer_proof.h"
#include "trainer/train/job/plan.h"
#include "trainer/train/options/plan_entries.h"
#include "trainer/train/reporting/formatting.h"
#include "trainer/train/training/evaluation.h"
#include "trainer/train/training/replicas.h"

namespace narrowcast::inference {
namespace {

LoadedModel load_model_file(const EvaluationJob& job) {
  files::SavedModel saved = files::load_model(job.file, "add --model=NET.pt2");
  TORCH_CHECK_VALUE(models::model_row(saved.name).learns(), "evaluate: ", job.file, " holds the model ", saved.name,
                    ", which cannot be evaluated; evaluate supports ", c10::Join(" and ", models::learning_models()));
  LoadedModel loaded = {.model = saved.model, .name = saved.name, .vocabulary = std::move(saved.vocabulary)};
  for (const auto& tensors : {saved.model->parameters(), saved.model->buffers()}) {
    loaded.state.insert(loaded.state.end(), tensors.begin(), tensors.end());
  }
  loaded.next = saved.model->next_token();
  loaded.context = loaded.next.has_value() ? loaded.next->context : job.context;
  const models::ModelOptions options = saved.model->options();
  if (const auto size = options.find("vocabulary_size"); size != options.end()) {
    loaded.vocabulary_size = size->second;
  }
  return loaded;
}

// Whether the job's text model gives logits for the next token.
bool predicts_tokens(const EvaluationJob& job, const std::optional<models::Loss>& loss) {
  return loss == models::Loss::kCrossEntropy && data::data_kind(job.as_model, job.data) == models::DataKind::kText;
}

// Compiled code takes whole contexts. A model that predicts the next token does not see what follows its prompt.
models::NextToken next_token_of(const std::shared_ptr<models::PackageModel>& model, int64_t context) {
  return {.context = context, .logits = [model, context](const at::Tensor& tokens) {
            const at::Tensor whole = at::constant_pad_nd(tokens, {0, context - tokens.numel()});
            return model->logits(whole.unsqueeze(0))[0][tokens.numel() - 1];
          }};
}

LoadedModel load_package_file(const EvaluationJob& job) {
  models::Package package = models::read_package(job.as_model);
  const std::string doubt = models::version_warning(package.manifest, job.as_model);
  const auto model = std::make_shared<models::PackageModel>(std::move(package), job.as_model);
  LoadedModel loaded = {.model = model, .name = job.as_model, .vocabulary = model->vocabulary()};
  loaded.code_hash = files::hash_of_files({job.as_model});
  if (!doubt.empty()) loaded.warnings.push_back("evaluate: " + doubt);
  if (job.file != job.as_model) {
    files::InitialState trained = files::read_initial_state(job.file, job.as_model, "evaluate");
    const std::vector<std::string> kept = files::load_initial_state(trained, *model);
    if (!kept.empty()) loaded.warnings.push_back(job::kept_buffers_text("evaluate", trained.path, kept, job.as_model));
    if (!trained.vocabulary.empty()) loaded.vocabulary = std::move(trained.vocabulary);
  }
  model->eval();
  for (const auto& tensors : {model->parameters(), model->buffers()}) {
    loaded.state.insert(loaded.state.end(), tensors.begin(), tensors.end());
  }
  loaded.vocabulary_size = model->classes();
  if (data::data_kind(job.as_model, job.data) == models::DataKind::kText) {
    TORCH_CHECK_VALUE(model->context().has_value(), "data: ", job.as_model,
                      " takes no sequences of tokens, but the data is text");
    loaded.context = *model->context();
    if (predicts_tokens(job, model->loss())) loaded.next = next_token_of(model, loaded.context);
  }
  return loaded;
}

LoadedModel load_script_file(const EvaluationJob& job) {
  files::SavedScript saved = files::load_script(job.file);
  saved.module.eval();
  LoadedModel loaded = {.model = nullptr,
                        .name = job.as_model,
                        .vocabulary = files::script_vocabulary(job.file, saved),
                        .context = job.context};
  for (const at::Tensor& parameter : saved.module.parameters()) {
    loaded.state.push_back(parameter);
  }
  for (const at::Tensor& buffer : saved.module.buffers()) {
    loaded.state.push_back(buffer);
  }
  const bool gives_loss = models::returns_loss(saved.module, job.file);
  std::optional<models::Loss> loss = job.loss;
  if (!gives_loss && !loss.has_value()) {
    loss = files::script_loss(job.file, saved).value_or(models::Loss::kCrossEntropy);
  }
  const auto model = std::make_shared<models::ScriptModel>(std::move(saved.module),
                                                           models::ScriptOptions{.name = job.file, .loss = loss});
  loaded.model = model;
  if (predicts_tokens(job, loss)) {
    loaded.next = {.context = job.context,
                   .logits = [model](const at::Tensor& tokens) { return model->logits(tokens.unsqueeze(0))[0][-1]; }};
  }
  return loaded;
}

void check_job(const EvaluationJob& job, int64_t world_size) {
  TORCH_CHECK_VALUE(
      job.batch_size >= 1 && data::divides_evenly({.global_batch = job.batch_size, .world_size = world_size}),
      "batch_size: must be a multiple of the number of ranks (", world_size, "), but is ", job.batch_size);
  TORCH_CHECK_VALUE(job.batches > 0 || job.generation.options.count > 0,
                    "evaluate: has no effect with eval_batches = 0 and without generate");
}

// An evaluation once everything it needs is there.
struct Evaluation {
  const EvaluationJob& job;
  LoadedModel loaded;
  std::optional<data::ReadData> data;  // none without evaluation
  at::Tensor prompt;                   // int64 [characters]; undefined if nothing is generated

  const std::vector<std::string>& vocabulary() const {
    return loaded.vocabulary.empty() && data.has_value() ? data->vocabulary : loaded.vocabulary;
  }
};

// With another number of characters, tokens stand for other characters. A padded vocabulary has more tokens.
void check_vocabulary(const Evaluation& evaluation) {
  const int64_t characters = static_cast<int64_t>(evaluation.vocabulary().size());
  if (!evaluation.loaded.next.has_value() || characters == 0) {
    return;
  }
  const at::NoGradGuard no_grad;
  const int64_t logits = evaluation.loaded.next->logits(at::zeros({1}, at::kLong)).numel();
  TORCH_CHECK_VALUE(models::any_model_row(evaluation.loaded.name).fits(logits, characters),
                    "evaluate: ", evaluation.job.file, " gives logits for ", logits, " characters, but ",
                    evaluation.loaded.vocabulary.empty() ? "the data has " : "its vocabulary has ", characters);
}

Evaluation prepare(const EvaluationJob& job) {
  Evaluation evaluation = {.job = job, .loaded = load_for_evaluation(job), .data = std::nullopt, .prompt = {}};
  if (job.batches > 0) {
    evaluation.data = read_data(job, evaluation.loaded);
  } else {
    TORCH_CHECK_VALUE(job.data.empty(), "data: has no effect with eval_batches = 0");
  }
  check_vocabulary(evaluation);
  if (job.generation.options.count > 0) {
    TORCH_CHECK_VALUE(evaluation.loaded.next.has_value(), "generate: ", job.file, " holds the model ",
                      evaluation.loaded.name, ", which cannot generate text");
    TORCH_CHECK_VALUE(!evaluation.vocabulary().empty(), "generate: ", job.file,
                      " has no vocabulary; with eval_batches above 0 it is taken from the data");
    const data::Vocabulary vocabulary(evaluation.vocabulary());
    const std::string& prompt = job.generation.prompt;
    evaluation.prompt = prompt.empty() ? vocabulary.line_start() : vocabulary.encode(prompt);
  }
  return evaluation;
}

// Compares the numbers of classes of the data and of the model, if both are known.
void check_classes(const EvaluationJob& job, const models::ModelOptions& of_data,
                   const models::ModelOptions& of_model) {
  const auto given = of_data.find("classes");
  const auto known = of_model.find("classes");
  TORCH_CHECK_VALUE(given == of_data.end() || known == of_model.end() || given->second <= known->second,
                    "evaluate: ", job.file, " has ", known->second, " classes, but the data has ", given->second);
}

nlohmann::json make_plan(const Evaluation& evaluation, int64_t world_size) {
  const EvaluationJob& job = evaluation.job;
  nlohmann::json plan = {{"version", job.version},
                         {"ranks", world_size},
                         {"evaluate", job.file},
                         {"model", evaluation.loaded.name},
                         {"model_options", evaluation.loaded.model->options()},
                         {"generate", job.generation.options.count}};
  if (evaluation.loaded.code_hash.has_value()) {
    plan["model_hash"] = job::hash_text(*evaluation.loaded.code_hash);
  }
  if (job.loss.has_value()) {
    plan["loss"] = to_string(*job.loss);
  }
  if (evaluation.data.has_value()) {
    plan["data"] = evaluation.data->name;
    plan["data_hash"] = job::hash_text(evaluation.data->hash);
    plan["held_out_samples"] = evaluation.data->dataset->held_out_size();
    plan["batch_size"] = job.batch_size;
    plan["eval_batches"] = job.batches;
  }
  return plan;
}

training::HeldOut evaluate(const Evaluation& evaluation, const ProcessGroupPtr& group) {
  const EvaluationJob& job = evaluation.job;
  return training::evaluate_held_out(
      *evaluation.loaded.model, *evaluation.data->dataset, group,
      {.samples = job.batches * job.batch_size,
       .batch = data::samples_per_rank({.global_batch = job.batch_size, .world_size = group->getSize()})});
}

std::string generated_text(const Evaluation& evaluation) {
  const GenerationJob& job = evaluation.job.generation;
  const at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(job.seed));
  const data::Vocabulary vocabulary(evaluation.vocabulary());
  models::GenerateOptions options = job.options;
  options.vocabulary = vocabulary.size();
  return vocabulary.decode(models::generate(*evaluation.loaded.next, evaluation.prompt, options, generator));
}

void run(const Evaluation& evaluation, const ProcessGroupPtr& group, const job::JobContext& context) {
  TORCH_CHECK_VALUE(training::equal_on_all_ranks(group, evaluation.loaded.state), "evaluate: ", evaluation.job.file,
                    " is not the same file on all ranks");
  std::ostream& out = context.results;
  const bool prints = group->getRank() == 0;
  if (evaluation.data.has_value()) {
    const training::HeldOut held_out = evaluate(evaluation, group);
    if (prints) {
      out << reporting::held_out_lines(
          {.loss = held_out.loss, .accuracy = held_out.accuracy, .bigram_entropy = evaluation.data->bigram_entropy});
    }
  }
  if (prints && evaluation.prompt.defined()) {
    out << "text:\n" << printable_text(evaluation.job.generation.prompt + generated_text(evaluation)) << "\n";
  }
  out << std::flush;
}

}  // namespace

LoadedModel load_for_evaluation(const EvaluationJob& job) {
  if (files::model_suffix("evaluate", job.file) == files::kScriptSuffix) return load_script_file(job);
  return models::is_package(job.as_model) ? load_package_file(job) : load_model_file(job);
}

data::ReadData read_data(const EvaluationJob& job, const LoadedModel& loaded) {
  data::DataRequest request = {
      .model = loaded.name, .paths = job.data, .vocabulary = loaded.vocabulary, .vocabulary_size = job.vocabulary_size};
  if (loaded.vocabulary_size.has_value()) {
    request.vocabulary_size = loaded.vocabulary_size;
  }
  return data::read_data(request, [&](const models::ModelOptions& sizes) {
    check_classes(job, sizes, loaded.model != nullptr ? loaded.model->options() : models::ModelOptions());
    return loaded.context;
  });
}

int run_evaluation_job(const EvaluationJob& job, const job::JobContext& context) {
  check_job(job, context.env.world_size);
  job::set_threads(job.threads, context);
  const Evaluation evaluation = prepare(job);
  const nlohmann::json plan = make_plan(evaluation, context.env.world_size);
  job::print_warnings(evaluation.loaded.warnings, context);
  if (job.dry_run) {
    if (context.env.rank == 0) {
      context.results << reporting::plan_text(plan) << std::flush;
    }
    return program::kSuccess;
  }
  const ProcessGroupScope scope(context.env, job::group_options_on(at::kCPU, job.group, context));
  scope.run([&] {
    job::prove_to_peers(scope.group(), process_environment());
    check_equal_on_all_ranks(scope.group(), options::compared_values(plan));
    run(evaluation, scope.group(), context);
  });
  return program::kSuccess;
}

}  // namespace narrowcast::inference
