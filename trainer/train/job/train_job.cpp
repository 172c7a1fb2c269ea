#include "trainer/train/job/train_job.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <thread>
#include <utility>

#include <narrowcast/hooks.h>
#include <narrowcast/models.h>
#include "models/table/model_table.h"
#include "ops/common/text.h"
#include "trainer/base/files/names.h"
#include "trainer/base/network/job_network.h"
#include "trainer/base/program/failure.h"
#include "trainer/base/program/job_secret.h"
#include "trainer/ddp/recovery/attempts.h"
#include "trainer/ddp/rendezvous/heartbeats.h"
#include "trainer/train/data/checked_targets.h"
#include "trainer/train/files/imported_file.h"
#include "trainer/train/files/model_file.h"
#include "trainer/train/files/weight_files.h"
#include "trainer/train/job/job_checkpoints.h"
#include "trainer/train/job/optimizer_shards.h"
#include "trainer/train/job/peer_proof.h"
#include "trainer/train/job/plan.h"
#include "trainer/train/job/restarts.h"
#include "trainer/train/job/training_job.h"
#include "trainer/train/job/verification_job.h"
#include "trainer/train/optimization/device.h"
#include "trainer/train/options/option_table.h"
#include "trainer/train/options/plan_entries.h"
#include "trainer/train/reporting/formatting.h"
#include "trainer/train/training/evaluation.h"

namespace narrowcast::job {
namespace {

// The file of the first parameters, if there is one.
std::optional<files::InitialState> read_initial_state(const TrainJob& job) {
  return job.init_from.empty() ? std::nullopt : std::optional(files::read_initial_state(job.init_from, job.model));
}

// Sets the options that the data determine. An option that is already set must fit the data.
void fit_to_data(const TrainJob& job, const models::ModelOptions& size_of_data, models::ModelOptions& options) {
  const models::ModelRow& model = models::model_row(job.model);
  for (const auto& [name, size] : size_of_data) {
    const int64_t decided = options.emplace(name, size).first->second;
    TORCH_CHECK_VALUE(model.fits(decided, size), name, ": is ", decided, ", but the data need ", size);
  }
}

// The model for data of that size.
std::shared_ptr<models::Model> make_model(const TrainJob& job, const std::optional<files::InitialState>& initial,
                                          const models::ModelOptions& size_of_data) {
  models::ModelOptions options = initial ? files::options_with(*initial, job.model_options) : job.model_options;
  fit_to_data(job, size_of_data, options);
  if (initial) {
    files::check_size(*initial, job.model, options);
  }
  at::manual_seed(static_cast<uint64_t>(job.seed));
  return models::create_model(job.model, options);
}

void load_imported(const TrainJob& job, JobInputs& inputs) {
  files::ImportedFile file = files::load_imported(job.model, job.loss);
  inputs.imported = std::move(file.model);
  inputs.model = inputs.imported;
  inputs.script = std::move(file.script);
  inputs.file_hash = file.hash;
  inputs.warnings = std::move(file.warnings);
}

// The length of a text's samples. A TorchScript module does not contain it.
int64_t context_of(const TrainJob& job, const JobInputs& inputs) {
  if (models::is_package(job.model)) {
    const std::optional<int64_t> context = inputs.imported->context();
    TORCH_CHECK_VALUE(context.has_value(), "data: ", job.model, " takes no sequences of tokens, but the data is text");
    return *context;
  }
  const models::ModelOptions options = inputs.script != nullptr ? job.model_options : inputs.model->options();
  const auto given = options.find("context");
  return given != options.end() ? given->second : models::CharGptOptions().context;
}

// The vocabulary of the model's file or of the first parameters' file; empty if neither has one.
std::vector<std::string> given_vocabulary(const TrainJob& job, const JobInputs& inputs,
                                          const std::optional<files::InitialState>& initial) {
  std::vector<std::string> of_module;
  if (inputs.imported != nullptr) {
    of_module = inputs.imported->vocabulary();
  }
  if (!initial || initial->vocabulary.empty()) {
    return of_module;
  }
  TORCH_CHECK_VALUE(of_module.empty() || of_module == initial->vocabulary, "init_from: ", job.init_from,
                    " has a different vocabulary from ", job.model);
  return initial->vocabulary;
}

// The vocabulary size for token files, if it is known without reading them: from the option, else from the model's file
// or that of the first parameters.
std::optional<int64_t> vocabulary_size_of(const TrainJob& job, const JobInputs& inputs,
                                          const std::optional<files::InitialState>& initial) {
  if (job.vocabulary_size) {
    return job.vocabulary_size;
  }
  if (inputs.imported != nullptr && inputs.imported->classes()) {
    return inputs.imported->classes();
  }
  if (!initial) {
    return std::nullopt;
  }
  const auto in_file = initial->options.find("vocabulary_size");
  return in_file == initial->options.end() ? std::nullopt : std::optional(in_file->second);
}

// The context of the file of the first parameters, if the model's is shorter.
std::optional<int64_t> longer_context(const files::InitialState& initial, const models::Model& model) {
  const models::ModelOptions own = model.options();
  const auto of_file = initial.options.find("context");
  const auto of_model = own.find("context");
  const bool are_known = of_file != initial.options.end() && of_model != own.end();
  return are_known && of_file->second > of_model->second ? std::optional(of_file->second) : std::nullopt;
}

// A model from a file that learns classes must have logits for all classes of the data. Its first pass checks this.
void expect_classes(const JobInputs& inputs) {
  if (inputs.imported == nullptr || inputs.imported->loss() != models::Loss::kCrossEntropy) {
    return;
  }
  if (const std::optional<int64_t> classes = inputs.dataset->class_bound()) {
    inputs.imported->expect_classes(*classes);
  }
}

// A module on a GPU does not look at the targets that it gets.
void check_targets(JobInputs& inputs) {
  if (inputs.imported != nullptr && !inputs.device.is_cpu()) {
    inputs.dataset = std::make_unique<data::CheckedTargets>(
        std::move(inputs.dataset),
        [model = inputs.imported](const at::Tensor& targets) { model->check_targets(targets); });
  }
}

// Reads the data into `inputs`, and makes the model that fits them.
void read_inputs(const TrainJob& job, JobInputs& inputs) {
  const bool is_text = data::data_kind(job.model, job.data) == models::DataKind::kText;
  const std::optional<files::InitialState> initial = read_initial_state(job);
  if (models::is_imported(job.model)) {
    load_imported(job, inputs);
  }
  const data::DataRequest request = {.model = job.model,
                                     .paths = job.data,
                                     .vocabulary = given_vocabulary(job, inputs, initial),
                                     .vocabulary_size = vocabulary_size_of(job, inputs, initial)};
  data::ReadData read = data::read_data(request, [&](const models::ModelOptions& sizes) {
    if (inputs.model == nullptr) {
      inputs.model = make_model(job, initial, sizes);
    }
    inputs.units_per_sample = is_text ? context_of(job, inputs) : 1;
    return inputs.units_per_sample;
  });
  inputs.unit = is_text ? "tokens" : "samples";
  inputs.dataset = std::move(read.dataset);
  inputs.data_name = std::move(read.name);
  inputs.data_hash = read.hash;
  inputs.vocabulary = std::move(read.vocabulary);
  inputs.bigram_entropy = read.bigram_entropy;
  expect_classes(inputs);
  if (initial) {
    const std::vector<std::string> kept = files::load_initial_state(*initial, *inputs.model);
    if (!kept.empty()) inputs.warnings.push_back(kept_buffers_text("init_from", initial->path, kept, job.model));
    inputs.init_hash = files::hash_of_files(initial->files);
    inputs.init_context = longer_context(*initial, *inputs.model);
  }
}

// The checks that a rank can make without the others.
void check_alone(const TrainJob& job, const WorkerEnv& env) {
  job.ddp.validate();
  options::check_ranges_of(job);
  check_shared_parameters(job, env);
  if (job.verification.has_value()) {
    check_verification_job(job, env.world_size);
    return;
  }
  check_training_job(job, ranks_to_check(job, env));
  if (!has_restarted(job, env)) training::check_auto_shares(job.training, ranks_to_check(job, env));
  check_optimizer_shards(job, env);
  // Other ranks, perhaps on machines without these folders, would wait for a rank that ends here. With several ranks,
  // prepare_places throws on all.
  if (job.dry_run || env.world_size == 1) {
    check_places(job.output);
  }
}

void print_plan(const TrainJob& job, nlohmann::json plan, const JobContext& context) {
  if (job.checkpoints.resume || !job.checkpoints.resume_from.empty()) {
    plan["goes_on_from"] = resume_text(job, plan, context.progress);
  }
  context.results << reporting::plan_text(plan) << std::flush;
}

// Prints which of several ranks share nodes, and the communication cost.
void print_nodes(const nlohmann::json& plan, const JobContext& context) {
  if (context.env.rank != 0) return;
  if (plan.contains("why_one_level")) {
    context.progress << "warning: one level, because the ranks of a node cannot share memory: "
                     << printable(plan["why_one_level"].get<std::string>()) << std::endl;
  }
  if (plan.contains("nodes") && context.env.world_size > 1) {
    context.progress << "nodes: " << nodes_text(plan) << std::endl;
  }
  print_optimizer_shards(plan, context);
  if (plan.contains("connections_in_use")) {
    context.progress << "connections: " << plan["connections_in_use"].get<std::string>() << std::endl;
  }
  if (plan.contains("link")) {
    context.progress << "link: " << plan["link"]["text"].get<std::string>() << std::endl;
  }
}

// Tries the passes of a model from a file on this rank's first batch, and an evaluation. Throws if the model cannot be
// trained or evaluated.
void try_imported(const TrainJob& job, const JobInputs& inputs, const WorkerEnv& env) {
  const auto& model = inputs.imported;
  if (model == nullptr) return;
  training::use_device(inputs.device);
  model->to(inputs.device);
  const int64_t ranks = ranks_to_check(job, env);
  const int64_t rank = std::min(env.rank, ranks - 1);
  const models::Batch batch = training::on_device(first_batch(job, inputs, rank, ranks), inputs.device);
  std::vector<std::string> unused;
  training::on_trial(*model, [&] {
    const training::Autocast autocast(inputs.device.type(), job.training.precision);
    unused = model->check_trains(batch);
  });
  // These options find unused parameters themselves.
  TORCH_CHECK_VALUE(unused.empty() || job.ddp.find_unused_parameters() || job.ddp.static_graph(), job.model,
                    ": the loss of the first batch does not depend on parameters ", describe_names(unused),
                    ": if the module is meant to leave parameters unused, set --find_unused_parameters");
  if (job.verification.has_value() || job.training.eval_batches == 0) return;
  training::try_evaluation(*model, *inputs.dataset, {.rank = rank, .world_size = ranks},
                           evaluation_of(job.training, training::batch_plan(job.training, ranks).micro_batch()));
}

// The number of ranks on this rank's node, according to its launcher.
int64_t ranks_of_a_node(const WorkerEnv& env) {
  return network::is_simulated(process_environment()) ? 1 : env.local_world_size;
}

at::Device choose_device(const TrainJob& job, const WorkerEnv& env) {
  if (!models::is_package(job.model)) {
    return training::choose_device(job.device, env);
  }
  TORCH_CHECK_VALUE(job.device == "auto" || job.device == "cpu", "device: must be cpu with the model package ",
                    job.model, ", which is compiled for it, but is ", job.device);
  return at::kCPU;
}

JobInputs make_inputs_on(const TrainJob& job, at::Device device) {
  JobInputs inputs = make_inputs(job);
  inputs.device = device;
  check_targets(inputs);
  return inputs;
}

// The work of the job's ranks in their group. `begun.plan` is this rank's own plan.
int run_in_group(const AgreedJob& begun) {
  prove_to_peers(begun.group, process_environment());
  check_plans(begun);
  if (begun.recovery != nullptr) recover_from_memory(begun);
  TrainJob job = with_possible_shards(begun);
  nlohmann::json plan = begun.plan;
  use_possible_quorum(begun, job, plan);
  const AgreedJob agreed = {job, begun.inputs, plan, begun.group, begun.context, begun.recovery};
  add_nodes(plan, job, begun.inputs, begun.group);
  add_optimizer_shards(plan, agreed);
  if (!has_recovered(begun)) print_nodes(plan, begun.context);
  // It was initialised on the CPU, so that every device begins with the same bits.
  begun.inputs.model->to(begun.inputs.device);
  training::seed_draws(begun.inputs.device,
                       {.seed = static_cast<uint64_t>(begun.job.seed), .rank = begun.context.env.rank});
  return begun.job.verification.has_value() ? run_verification_job(agreed) : run_training_job(agreed);
}

// Trains in a group of all ranks, and continues each time another rank was lost.
int run_through_losses(const TrainJob& job, JobInputs& inputs, const ProcessGroupOptions& group,
                       const JobContext& context) {
  InPlaceRecovery recovery;
  recovery.make_inputs = [&] { inputs = make_inputs_on(job, inputs.device); };
  int code = program::kSuccess;
  const auto attempt = [&](recovery::Attempt& attempt) {
    recovery.interrupted_at = attempt.interrupted_at;
    const ProcessGroupScope scope(attempt.env, group);
    attempt.has_joined = true;
    use_newcomers_of(scope, recovery);
    recovery.regroups = false;
    JobContext again = context;
    again.env = scope.env();
    code = scope.run([&] {
      const TrainJob restarted = restarted_alike(job, again, scope.group());
      check_training_job(restarted, again.env.world_size);  // Nodes may have come or gone.
      const nlohmann::json plan = make_plan(job, inputs, again.env.world_size, std::nullopt);
      return run_in_group({restarted, inputs, plan, scope.group(), again, &recovery});
    });
    return recovery.regroups ? recovery::AttemptEnd::kRegroup : recovery::AttemptEnd::kDone;
  };
  recovery::work_until_nothing_is_lost(
      context.env, {.attempt = attempt,
                    .step = [&] { return recovery.step(); },
                    .gives_up = [&] { return recovery.caught != nullptr && recovery.caught->first() != 0; }});
  return code;
}

}  // namespace

JobInputs make_inputs(const TrainJob& job) {
  JobInputs inputs;
  if (models::any_model_row(job.model).learns()) {
    read_inputs(job, inputs);
  } else {
    inputs.model = make_model(job, std::nullopt, {});
    inputs.data_name = "none";
  }
  inputs.model->regularize(job.regularization);
  return inputs;
}

models::Batch first_batch(const TrainJob& job, const JobInputs& inputs, int64_t rank, int64_t world_size) {
  const data::SampleOrder order(inputs.dataset->training_size(), static_cast<uint64_t>(job.seed));
  const data::BatchPlan plan = training::batch_plan(job.training, world_size);
  return inputs.dataset->training_batch(plan.samples(order, rank, /*step=*/0, /*micro_step=*/0));
}

ProcessGroupOptions group_options_on(at::Device device, ProcessGroupOptions options, const JobContext& context) {
  program::JobSecret::of_environment(process_environment());  // Throws before the ranks meet.
  options.on_silence = context.on_silence;
  options.backend = training::choose_backend(options.backend, device);
  if (device.is_cuda()) options.gpu = device.index();
  return options;
}

std::string kept_buffers_text(const std::string& option, const std::string& path,
                              const std::vector<std::string>& buffers, const std::string& model) {
  return absl::StrCat(option, ": ", path, " lacks the buffer", buffers.size() > 1 ? "s" : "", " ",
                      describe_names(buffers), ": the values in ", model, " are kept");
}

void print_warnings(const std::vector<std::string>& warnings, const JobContext& context) {
  if (context.env.rank != 0) return;
  for (const std::string& warning : warnings) {
    context.progress << "warning: " << printable(warning) << std::endl;
  }
}

void set_threads(int64_t threads, const JobContext& context) {
  TORCH_CHECK_VALUE(threads >= 0 && threads <= 4096, "threads: must be in 0..4096, but is ", threads);
  if (threads == 0 && context.session.omp_num_threads_set) return;
  // If each rank of a node used all its cores, they would slow each other down.
  const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  const int64_t share = std::max<int64_t>(1, cores / context.env.local_world_size);
  at::set_num_threads(static_cast<int>(threads > 0 ? threads : share));
}

int run_job(const TrainJob& wanted, const JobContext& context) {
  const rendezvous::Heartbeats heartbeats(context.env);  // Other ranks may wait while this one reads its data.
  const TrainJob job = as_restarted(wanted, context.env);
  set_threads(job.threads, context);
  check_alone(job, context.env);
  const at::Device device = choose_device(job, context.env);
  const ProcessGroupOptions group = group_options_on(device, job.group, context);
  JobInputs inputs = make_inputs_on(job, device);
  print_warnings(inputs.warnings, context);
  try_imported(job, inputs, context.env);
  const std::optional<int64_t> ranks_per_node =
      job.dry_run ? std::optional(ranks_of_a_node(context.env)) : std::nullopt;
  // A process that replaces another one resumes, which the ranks that live on were not asked to.
  const bool recovers = recovers_in_place(job, context.env);
  const nlohmann::json plan = make_plan(recovers ? wanted : job, inputs, context.env.world_size, ranks_per_node);
  if (job.dry_run) {
    if (context.env.rank == 0) {
      print_plan(job, plan, context);
    }
    return program::kSuccess;
  }
  training::use_device(device);
  if (!recovers) {
    check_begins_together(context.env, "verify_gradients");
    const ProcessGroupScope scope(context.env, group);
    return scope.run([&] { return run_in_group({job, inputs, plan, scope.group(), context}); });
  }
  return run_through_losses(wanted, inputs, group, context);
}

}  // namespace narrowcast::job
