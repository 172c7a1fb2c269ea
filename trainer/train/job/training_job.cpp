#include "trainer/train/job/training_job.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include <narrowcast/errors.h>
#include "hooks/table/hook_table.h"
#include "models/table/model_table.h"
#include "trainer/base/program/failure.h"
#include "trainer/ddp/process_group/first_failure.h"
#include "trainer/train/data/text_corpus.h"
#include "trainer/train/files/file_io.h"
#include "trainer/train/files/model_file.h"
#include "trainer/train/files/script_file.h"
#include "trainer/train/job/early_end.h"
#include "trainer/train/job/job_checkpoints.h"
#include "trainer/train/job/optimizer_shards.h"
#include "trainer/train/job/plan.h"
#include "trainer/train/job/restarts.h"
#include "trainer/train/job/training_results.h"
#include "trainer/train/reporting/metrics.h"
#include "trainer/train/reporting/progress.h"
#include "trainer/train/reporting/prometheus.h"
#include "trainer/train/reporting/report.h"
#include "trainer/train/reporting/tensorboard.h"
#include "trainer/train/training/replicas.h"
#include "trainer/train/training/training_loop.h"

namespace narrowcast::job {
namespace {

namespace fs = std::filesystem;
using files::JsonLinesFile;
using reporting::Metrics;

void check_absent(const std::string& path) {
  std::error_code error;
  TORCH_CHECK_VALUE(!fs::exists(path, error), "output_dir: ", path, " exists already; --overwrite replaces it");
}

void check_models_absent(const TrainJob& job) {
  check_absent(model_path(job.output));
  if (models::is_script(job.model)) {
    check_absent(script_path(job.output));
  }
}

// A job that restarts before its first checkpoint finds its own files, which are unfinished.
void check_unfinished(const TrainJob& job) {
  check_models_absent(job);
  const OutputOptions& output = job.output;
  if (reporting::metrics_have_ended(metrics_path(output))) {
    check_absent(metrics_path(output));
  }
}

// On rank 0, after check_places found no error.
void make_places(const TrainJob& job) {
  const OutputOptions& output = job.output;
  if (!output.folder.empty()) {
    files::make_folder("output_dir", output.folder);
    JsonLinesFile::check_place(metrics_path(output));
    files::check_replaceable("output_dir", model_path(output));
    if (models::is_script(job.model)) {
      files::check_replaceable("output_dir", script_path(output));
    }
  }
  if (!output.tensorboard_dir.empty()) {
    reporting::make_tensorboard_folder(output.tensorboard_dir);
  }
}

// Checks a path after the folders were made. Before, a path inside a folder that does not exist yet cannot be checked.
void check_replaceable_after_creation(const OutputOptions& output, const std::string& option, const std::string& path) {
  const std::string made[] = {output.folder, output.tensorboard_dir};
  const bool will_be_there = std::ranges::any_of(
      made, [&](const std::string& folder) { return !folder.empty() && files::makes_folder_of(folder, path); });
  std::error_code error;
  if (!path.empty() && (!will_be_there || fs::exists(fs::absolute(path, error).parent_path(), error))) {
    files::check_replaceable(option, path);
  }
}

// The last step whose reports are complete, in a training that continues.
int64_t last_reported_step(const AgreedJob& agreed, const JobCheckpoints& checkpoints) {
  const bool is_reported = !has_recovered(agreed) || agreed.recovery->recovered->is_reported;
  return checkpoints.restored->step - (is_reported ? 0 : 1);
}

reporting::RecoveryReport recovery_report(const AgreedJob& agreed, const JobCheckpoints& checkpoints) {
  const InPlaceRecovery& recovery = *agreed.recovery;
  reporting::RecoveryReport report = {.ranks = agreed.context.env.world_size,
                                      .former_ranks = recovery.recovered->former_ranks,
                                      .step = checkpoints.restored->step,
                                      .lost_ranks = recovery.recovered->lost_ranks,
                                      .lost_residuals = recovery.recovered->lost_residuals};
  if (recovery.interrupted_at.has_value()) {
    report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - *recovery.interrupted_at).count();
  }
  return report;
}

// For people, on rank 0.
void report_recovery(const AgreedJob& agreed, const JobCheckpoints& checkpoints) {
  if (!has_recovered(agreed) || agreed.context.env.rank != 0) {
    return;
  }
  const reporting::RecoveryReport report = recovery_report(agreed, checkpoints);
  std::ostream& out = agreed.context.progress;
  out << "recovered: ";
  if (report.ranks != report.former_ranks) {
    out << report.ranks << (report.ranks == 1 ? " rank" : " ranks") << " instead of " << report.former_ranks;
  } else if (report.lost_ranks.empty()) {
    out << "connections were lost";
  } else {
    const bool is_one = report.lost_ranks.size() == 1;
    // Where nodes change, ranks are numbered anew.
    const char* const what = agreed.context.env.node > 0 ? (is_one ? " is new" : " are new")
                             : is_one                    ? " was lost"
                                                         : " were lost";
    out << describe_ranks(report.lost_ranks) << what;
  }
  out << "; goes on after step " << report.step;
  if (report.seconds.has_value()) {
    out << ", " << reporting::format_duration(*report.seconds) << " after the loss";
  }
  out << std::endl;
}

// On rank 0. Null if the job writes none.
std::unique_ptr<Metrics> open_metrics(const AgreedJob& agreed, const JobCheckpoints& checkpoints) {
  const OutputOptions& output = agreed.job.output;
  if (output.folder.empty()) {
    return nullptr;
  }
  if (agreed.job.checkpoints.resume && !checkpoints.same_training) {
    check_unfinished(agreed.job);
  }
  const std::string path = metrics_path(output);
  const bool resumes =
      checkpoints.same_training && reporting::truncate_metrics(path, last_reported_step(agreed, checkpoints));
  auto metrics =
      std::make_unique<Metrics>(path, resumes ? files::JsonLinesMode::kAppend : files::JsonLinesMode::kReplace);
  if (!resumes) {
    nlohmann::json start = agreed.plan;
    if (const std::string run = run_of(agreed.context.env); !run.empty()) {
      start["run_id"] = run;
    }
    metrics->on_start(start);
  }
  if (has_recovered(agreed)) {
    metrics->on_recovery(recovery_report(agreed, checkpoints));
  } else if (checkpoints.restored.has_value()) {
    const checkpoint::Restored& from = *checkpoints.restored;
    metrics->on_resume({from.step, from.path, checkpoints.changes, why_memory_is_lost(agreed)});
  }
  return metrics;
}

// The observers for people and for other programs. metrics.jsonl, if there is one, is written before the page, which is
// made from it.
void add_observers(reporting::Observers& observers, const AgreedJob& agreed, const JobCheckpoints& checkpoints) {
  const JobContext& context = agreed.context;
  const OutputOptions& output = agreed.job.output;
  const bool terminal = context.progress_is_terminal;
  observers.own(std::make_unique<reporting::Progress>(
      context.progress, reporting::ProgressOptions{.steps = agreed.job.training.steps,
                                                   .unit = agreed.inputs.unit,
                                                   .terminal = terminal,
                                                   .color = !context.session.no_color && terminal}));
  if (!output.prometheus_file.empty()) {
    observers.own(
        std::make_unique<reporting::PrometheusFile>(reporting::PrometheusOptions{.path = output.prometheus_file,
                                                                                 .model = agreed.job.model,
                                                                                 .hook = agreed.job.ddp.hook(),
                                                                                 .unit = agreed.inputs.unit}));
  }
  if (!output.tensorboard_dir.empty()) {
    const int64_t steps_done = checkpoints.restored ? last_reported_step(agreed, checkpoints) : 0;
    observers.own(std::make_unique<reporting::TensorBoardEvents>(
        reporting::TensorBoardOptions{.folder = output.tensorboard_dir, .steps_done = steps_done}));
  }
  if (!output.report.empty()) {
    observers.own(std::make_unique<reporting::TrainingReport>(output.report, output.folder));
  }
}

training::TrainingResult train_with_reports(const AgreedJob& agreed, JobCheckpoints& checkpoints, Metrics* metrics,
                                            const CaughtSignals* caught) {
  const bool is_rank_0 = agreed.context.env.rank == 0;
  reporting::Observers observers;
  if (metrics != nullptr) {
    observers.add(*metrics);
  }
  if (is_rank_0) {
    add_observers(observers, agreed, checkpoints);
  }
  training::TrainingOptions options = agreed.job.training;
  options.seed = static_cast<uint64_t>(agreed.job.seed);
  return training::train(
      {.model = agreed.inputs.model,
       .dataset = *agreed.inputs.dataset,
       .group = agreed.group,
       .ddp = agreed.job.ddp,
       .outer = agreed.job.outer,
       .shards = optimizer_shards_of(agreed),
       .units_per_sample = agreed.inputs.units_per_sample,
       .observer = is_rank_0 ? &observers : nullptr,
       .checkpoints = {.writer = checkpoints.writer.get(),
                       .every = agreed.job.checkpoints.every,
                       .restored = checkpoints.restored ? &*checkpoints.restored : nullptr,
                       .is_reported = !has_recovered(agreed) || agreed.recovery->recovered->is_reported,
                       .surviving = agreed.recovery != nullptr ? &agreed.recovery->surviving : nullptr,
                       .asked_to_stop = asked_to_stop(agreed, caught)}},
      options);
}

// In evaluation mode, with the module's own extra files.
void save_module(const AgreedJob& agreed) {
  files::SavedScript saved = *agreed.inputs.script;
  files::put_loss(saved, agreed.inputs.imported->loss());
  saved.module.eval();
  files::put_vocabulary(saved, agreed.inputs.vocabulary);
  files::save_script(script_path(agreed.job.output), saved);
}

void save(const AgreedJob& agreed) {
  if (agreed.inputs.script != nullptr) {
    save_module(agreed);
  }
  files::save_model(model_path(agreed.job.output), {.name = models::any_model_row(agreed.job.model).name,
                                                    .model = agreed.inputs.model,
                                                    .vocabulary = agreed.inputs.vocabulary});
}

// With an outer optimizer, replicas become equal at the end.
bool replicas_must_match(const TrainJob& job) { return job.outer.has_value() || keeps_replicas_equal(job); }

// Writes the page of metrics.jsonl, if it is requested.
void write_page(const AgreedJob& agreed) {
  const OutputOptions& output = agreed.job.output;
  if (agreed.context.env.rank == 0 && !output.report.empty()) {
    reporting::TrainingReport(output.report, output.folder).write();
  }
}

}  // namespace

std::string model_path(const OutputOptions& output) { return fs::path(output.folder) / "model.safetensors"; }
std::string script_path(const OutputOptions& output) { return fs::path(output.folder) / "model.pt"; }
std::string metrics_path(const OutputOptions& output) { return fs::path(output.folder) / reporting::kMetricsFile; }

void check_output(const TrainJob& job) {
  const OutputOptions& output = job.output;
  if (!output.report.empty()) {
    reporting::check_page_name(output.report);
  }
  if (output.folder.empty() || output.overwrite || job.checkpoints.resume) {
    return;
  }
  check_models_absent(job);
  const std::string metrics = metrics_path(output);
  const bool is_own = !output.restarted_run.empty() && reporting::metrics_are_of(metrics, output.restarted_run) &&
                      !reporting::metrics_have_ended(metrics);
  if (!is_own) {
    check_absent(metrics);
  }
}

void check_places(const OutputOptions& output) {
  if (!output.folder.empty()) {
    files::check_makeable("output_dir", output.folder);
  }
  if (!output.tensorboard_dir.empty()) {
    files::check_makeable("tensorboard_dir", output.tensorboard_dir);
  }
  check_replaceable_after_creation(output, "report", output.report);
  check_replaceable_after_creation(output, "prometheus_file", output.prometheus_file);
}

void prepare_places(const AgreedJob& agreed) {
  do_on_all_ranks(agreed.group, "", [&] {
    if (agreed.context.env.rank == 0) {
      check_places(agreed.job.output);
      make_places(agreed.job);
    }
  });
}

std::unique_ptr<Metrics> prepare_output(const AgreedJob& agreed, const JobCheckpoints& checkpoints) {
  std::unique_ptr<Metrics> metrics;
  do_on_all_ranks(agreed.group, "", [&] {
    if (agreed.context.env.rank == 0) {
      metrics = open_metrics(agreed, checkpoints);
    }
  });
  return metrics;
}

void check_training_job(const TrainJob& job, int64_t world_size) {
  training::check_training_options(job.training, world_size);
  check_outer_options(job);
  TORCH_CHECK_VALUE(job.training.shares.are_equal() || hooks::hook_row(job.ddp.hook()).keeps_replicas_equal,
                    "shares: ", data::to_string(job.training.shares),
                    " needs a hook that averages the gradients of all ", "ranks in each step, but the hook is ",
                    job.ddp.hook());
  const int64_t start = job.ddp.power_sgd().start;
  TORCH_CHECK_VALUE(!hooks::hook_row(job.ddp.hook()).approximates() || job.training.steps > start,
                    "power_sgd_start: is ", start, ", so that a training of ", job.training.steps,
                    " steps would compress nothing");
  check_output(job);
  check_checkpoint_options(job);
}

int run_training_job(const AgreedJob& agreed) {
  prepare_places(agreed);
  JobCheckpoints checkpoints = open_checkpoints(agreed);
  const std::unique_ptr<Metrics> metrics = prepare_output(agreed, checkpoints);
  report_recovery(agreed, checkpoints);
  std::unique_ptr<CaughtSignals> own_signals;
  std::unique_ptr<CaughtSignals>& caught = agreed.recovery != nullptr ? agreed.recovery->caught : own_signals;
  if (caught == nullptr) {
    caught = catch_preemption_signals(agreed);
  }
  const training::TrainingResult result = train_with_reports(agreed, checkpoints, metrics.get(), caught.get());
  if (result.takes_in_newcomers) {
    agreed.recovery->regroups = true;
    return program::kSuccess;
  }
  if (result.preempted.has_value()) {
    write_page(agreed);
    return report_preemption(agreed, *result.preempted, *caught);
  }
  caught.reset();
  const EndedTraining ended = {
      .result = result,
      .replicas_identical = training::equal_on_all_ranks(agreed.group, agreed.inputs.model->parameters())};
  const bool diverged = ended.result.diverged_at.has_value();
  agreed.inputs.model->to(at::kCPU);
  if (metrics != nullptr) {
    if (!diverged) {
      save(agreed);
    }
    metrics->on_end(results_of(ended));  // After the model: a reader that finds the end also finds the model.
  }
  if (diverged) {
    report_divergence(agreed, ended.result);
    write_page(agreed);
    return program::kCheckFailed;
  }
  write_page(agreed);  // Last: the model is saved, and --compare can write the page again.
  if (agreed.context.env.rank == 0) {
    print_results(agreed, ended);
    print_sample(agreed);
    agreed.context.results << std::flush;
  }
  return ended.replicas_identical || !replicas_must_match(agreed.job) ? program::kSuccess : program::kCheckFailed;
}

}  // namespace narrowcast::job
