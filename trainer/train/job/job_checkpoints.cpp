#include "trainer/train/job/job_checkpoints.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#include <algorithm>
#include <filesystem>
#include <ostream>
#include <utility>
#include <vector>

#include <narrowcast/errors.h>
#include "models/table/model_table.h"
#include "ops/common/text.h"
#include "trainer/base/files/json.h"
#include "trainer/ddp/process_group/first_failure.h"
#include "trainer/train/checkpoint/checkpoint_folder.h"
#include "trainer/train/checkpoint/manifest.h"
#include "trainer/train/job/early_end.h"
#include "trainer/train/job/restarts.h"
#include "trainer/train/job/training_job.h"
#include "trainer/train/options/plan_entries.h"

namespace narrowcast::job {
namespace {

namespace fs = std::filesystem;
using checkpoint::Existing;
using checkpoint::ReadCheckpoint;
using nlohmann::json;

// Settings that older checkpoints lack.
constexpr const char* kAddedLater[] = {"data_hash"};

// The channel size of checkpoints from before it was an option. It must not follow a new default.
constexpr int64_t kFirstChannelSize = 512;

// The same for local steps: residuals did not decay.
constexpr double kFirstErrorDecay = 1;

// The settings on which only the decay of a schedule "wsd" depends.
constexpr const char* kOfDecay[] = {"steps", "decay_steps", "min_learning_rate"};

// The bucket size of a job whose first steps choose it.
constexpr const char* kAuto = "auto";

// A job's `settings` for a comparison with `saved`. A setting that was added later cannot be compared with an older
// checkpoint, which lacks it. A job that leaves the bucket size open takes the checkpoint's.
json comparable_settings(json settings, const json& saved) {
  if (settings.at("bucket_cap_mb") == kAuto && saved.contains("bucket_cap_mb")) {
    settings["bucket_cap_mb"] = saved["bucket_cap_mb"];
  }
  for (const char* const name : kAddedLater) {
    if (!saved.contains(name)) {
      settings.erase(name);
    }
  }
  return settings;
}

// The settings `saved` of a checkpoint, completed by settings that had only one value when it was written.
json complete_settings(json saved) {
  if (saved.value("hook", json()) == "quantize_per_channel" && !saved.contains("channel_size")) {
    saved["channel_size"] = kFirstChannelSize;
  }
  if (saved.contains("outer_error_feedback") && !saved.contains("outer_error_decay")) {
    saved["outer_error_decay"] = kFirstErrorDecay;
  }
  return saved;
}

// Whether the decay of these settings begins after the first `step` steps, so that it may still be changed.
bool decays_later(const json& settings, int64_t step) {
  const json steps = settings.value("steps", json());
  const json decay = settings.value("decay_steps", json());
  return settings.value("schedule", json()) == to_string(ScheduleKind::kWsd) && steps.is_number_integer() &&
         decay.is_number_integer() && step <= steps.get<int64_t>() - decay.get<int64_t>();
}

Existing existing_ones(const TrainJob& job) {
  if (job.checkpoints.resume) {
    return Existing::kKeep;
  }
  return job.output.overwrite ? Existing::kRemove : Existing::kRefuse;
}

bool lies_in(const std::string& path, const std::string& folder) {
  std::error_code error;
  const fs::path parent = fs::weakly_canonical(fs::path(path) / "..", error);
  return !error && parent == fs::weakly_canonical(folder, error);
}

// Whether the warm-up of these settings is over after `step` steps, and no later step depends on its length.
bool warmed_up_for_good(const json& settings, int64_t step) {
  const json warmup = settings.value("warmup_steps", json());
  const json schedule = settings.value("schedule", json());
  const bool is_forgotten = schedule == to_string(ScheduleKind::kConstant) || schedule == to_string(ScheduleKind::kWsd);
  return is_forgotten && warmup.is_number_integer() && warmup.get<int64_t>() <= step;
}

// Throws unless this job may resume from the checkpoint.
void check_fits(const TrainJob& job, const ReadCheckpoint& read, const checkpoint::Description& description) {
  json saved = complete_settings(read.manifest.settings);
  json settings = comparable_settings(description.settings, read.manifest.settings);
  if (decays_later(saved, read.restored.step) && decays_later(settings, read.restored.step)) {
    for (const char* const name : kOfDecay) {
      saved.erase(name);
      settings.erase(name);
    }
  }
  if (warmed_up_for_good(saved, read.restored.step) && warmed_up_for_good(settings, read.restored.step)) {
    saved.erase("warmup_steps");
    settings.erase("warmup_steps");
  }
  checkpoint::check_settings(saved, settings, read.restored.path, options::entries_by_cause());
  TORCH_CHECK_VALUE(read.restored.step <= job.training.steps, "steps: is ", job.training.steps, ", but the checkpoint ",
                    read.restored.path, " is of step ", read.restored.step);
}

std::string describe(const TrainJob& job, const checkpoint::Restored& restored) {
  return c10::str(restored.path, ", step ", restored.step, " of ", job.training.steps);
}

void report(const AgreedJob& agreed, const JobCheckpoints& checkpoints) {
  if (agreed.context.env.rank != 0) {
    return;
  }
  std::ostream& out = agreed.context.progress;
  if (checkpoints.restored.has_value()) {
    out << "resumes from " << printable(describe(agreed.job, *checkpoints.restored)) << "\n";
  } else if (agreed.job.checkpoints.resume) {
    out << "starts a new training: there is no checkpoint in " << printable(agreed.job.checkpoints.folder) << "\n";
  } else if (!agreed.job.output.restarted_run.empty()) {
    out << "starts a new training: the previous start wrote no checkpoint (--checkpoint_dir)\n";
  }
  if (!checkpoints.changes.empty()) {
    out << "warning: results will not be bit-identical to an uninterrupted training: " << printable(checkpoints.changes)
        << "\n";
  }
  out << std::flush;
}

// The newest checkpoint in the job's own folder, else the one that --resume_from names.
std::optional<ReadCheckpoint> find(const AgreedJob& agreed, JobCheckpoints& checkpoints,
                                   std::vector<int64_t>& invalid_steps) {
  const CheckpointOptions& options = agreed.job.checkpoints;
  if (options.resume) {
    const auto warn = [&](const std::string& line) { agreed.context.progress << printable(line) << std::endl; };
    checkpoint::FoundCheckpoint found = checkpoint::find_newest(agreed.group, options.folder, warn);
    invalid_steps = std::move(found.invalid_steps);
    checkpoints.same_training = found.newest.has_value();
    if (found.newest.has_value()) {
      return std::move(found.newest);
    }
  }
  return options.resume_from.empty() ? std::nullopt
                                     : std::optional(checkpoint::read_on_all_ranks(agreed.group, options.resume_from));
}

// The newest valid checkpoint, as one process sees it.
std::optional<ReadCheckpoint> find_alone(const CheckpointOptions& options, std::ostream& warnings) {
  const auto steps = options.resume ? checkpoint::checkpoint_steps(options.folder) : std::vector<int64_t>{};
  for (const int64_t step : steps) {
    try {
      return checkpoint::read_checkpoint(checkpoint::checkpoint_path(options.folder, step), 0, 1);
    } catch (const c10::Error& error) {
      warnings << "warning: skips the checkpoint of step " << step << ": " << printable(error.what_without_backtrace())
               << "\n";
    }
  }
  NARROWCAST_CHECK_INPUT(steps.empty(), "checkpoint_dir ", options.folder, ": none of its ", steps.size(),
                         " checkpoints is valid; remove them to start a new training");
  return options.resume_from.empty() ? std::nullopt
                                     : std::optional(checkpoint::read_checkpoint(options.resume_from, 0, 1));
}

// A collective: the step of the newest checkpoint of a training that has recovered in place.
std::optional<int64_t> written_before(const AgreedJob& agreed) {
  if (!has_recovered(agreed)) {
    return std::nullopt;
  }
  std::string newest;
  if (agreed.context.env.rank == 0) {
    const std::vector<int64_t> steps = checkpoint::checkpoint_steps(agreed.job.checkpoints.folder);
    newest = steps.empty() ? "" : std::to_string(steps[0]);
  }
  newest = from_rank_0(agreed.group, newest);
  return newest.empty() ? std::nullopt : std::optional(files::parse_json(newest, "newest step").get<int64_t>());
}

}  // namespace

checkpoint::Description describe_job(const TrainJob& job, const json& plan) {
  checkpoint::Description description = {.settings = plan, .circumstances = json::object()};
  json& settings = description.settings;
  json& circumstances = description.circumstances;
  for (const auto& [name, value] : plan.items()) {
    const options::Role role = options::role_of_entry(plan, name);
    if (role == options::Role::kSetting) continue;
    settings.erase(name);
    if (role == options::Role::kCircumstance) circumstances[name] = value;
  }
  if (plan.contains("model_hash")) {
    settings["model"] = models::any_model_row(job.model).name;  // Its file may have moved.
  }
  settings.update(plan.at("model_options"));
  settings.erase("model_options");
  if (job.training.learning_rate.schedule == ScheduleKind::kConstant) {
    settings.erase("steps");
  }
  settings["bucket_cap_mb"] = job.ddp.bucket_cap_mb() ? json(*job.ddp.bucket_cap_mb()) : json(kAuto);
  circumstances["threads"] = at::get_num_threads();
  circumstances["libtorch"] = TORCH_VERSION;
  circumstances["instructions"] = at::get_cpu_capability();
  return description;
}

void check_checkpoint_options(const TrainJob& job) {
  const CheckpointOptions& options = job.checkpoints;
  TORCH_CHECK_VALUE(!options.folder.empty() || !options.resume,
                    "resume: needs checkpoint_dir, the folder to resume from");
  TORCH_CHECK_VALUE(!options.folder.empty() || options.preemption_signals.empty(),
                    "preemption_signals: needs checkpoint_dir, the folder to write the checkpoint to");
  preemption_signals(options);  // Throws for one that cannot be caught.
  if (options.folder.empty()) {
    return;
  }
  const auto steps = checkpoint::checkpoint_steps(options.folder);
  TORCH_CHECK_VALUE(steps.empty() || existing_ones(job) != Existing::kRefuse, "checkpoint_dir ", options.folder, ": ",
                    checkpoint::holds_checkpoints(steps.at(0)));
  TORCH_CHECK_VALUE(existing_ones(job) != Existing::kRemove || !lies_in(options.resume_from, options.folder),
                    "resume_from: lies in checkpoint_dir ", options.folder, ", which --overwrite empties");
}

JobCheckpoints open_checkpoints(const AgreedJob& agreed) {
  const CheckpointOptions& options = agreed.job.checkpoints;
  JobCheckpoints checkpoints;
  std::unique_ptr<checkpoint::FolderOwner> owner;
  const auto prepare = [&] {
    if (!options.folder.empty()) {
      owner =
          checkpoint::prepare_folder(agreed.group, options.folder, existing_ones(agreed.job),
                                     {.job = agreed.context.env.run_id,
                                      .has_recovered = has_recovered(agreed) || !why_memory_is_lost(agreed).empty()});
    }
  };
  if (options.resume) {
    prepare();
  }
  checkpoint::Description description = describe_job(agreed.job, agreed.plan);
  description.run_id = run_of(agreed.context.env);
  std::vector<int64_t> invalid_steps;
  if (has_recovered(agreed)) {
    checkpoints.restored = std::move(agreed.recovery->recovered->restored);
    checkpoints.restored->training.erase("shares");  // Measured ones are of other processes.
    checkpoints.same_training = true;
  } else if (auto read = find(agreed, checkpoints, invalid_steps)) {
    check_fits(agreed.job, *read, description);
    checkpoints.changes = checkpoint::describe_changes(read->manifest.circumstances, description.circumstances);
    checkpoints.restored = std::move(read->restored);
  }
  if (!options.resume) {  // Old checkpoints are removed only after the one to resume from was read.
    prepare();
  }
  if (!options.folder.empty()) {
    checkpoints.writer = std::make_unique<checkpoint::CheckpointWriter>(
        agreed.group,
        checkpoint::WriterOptions{.folder = options.folder, .keep = options.keep, .written = written_before(agreed)},
        description, invalid_steps, std::move(owner));
  }
  if (!has_recovered(agreed)) {
    report(agreed, checkpoints);
  }
  return checkpoints;
}

std::string resume_text(const TrainJob& job, const json& plan, std::ostream& warnings) {
  const auto read = find_alone(job.checkpoints, warnings);
  if (!read.has_value()) {
    return "nothing";
  }
  check_fits(job, *read, describe_job(job, plan));
  return describe(job, read->restored);
}

}  // namespace narrowcast::job
