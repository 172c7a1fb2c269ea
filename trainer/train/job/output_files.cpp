#include "trainer/train/job/output_files.h"

#include <c10/util/Exception.h>

#include <filesystem>

#include <narrowcast/errors.h>
#include "trainer/train/checkpoint/first_failure.h"

namespace narrowcast::job {
namespace {

namespace fs = std::filesystem;
using reporting::Metrics;

void check_absent(const std::string& path) {
  std::error_code error;
  TORCH_CHECK_VALUE(!fs::exists(path, error), "output_dir: ", path, " exists already; --overwrite replaces it");
}

// A job that is started again before its first checkpoint finds what it wrote itself until then.
void check_unfinished(const OutputOptions& output) {
  check_absent(model_path(output));
  if (reporting::metrics_have_ended(metrics_path(output))) {
    check_absent(metrics_path(output));
  }
}

void make_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  TORCH_CHECK_VALUE(!error, "output_dir: cannot make folder ", folder, ": ", error.message());
}

std::unique_ptr<Metrics> open_metrics(const AgreedJob& agreed, const JobCheckpoints& checkpoints) {
  const OutputOptions& output = agreed.job.output;
  make_folder(output.folder);
  if (agreed.job.checkpoints.resume && !checkpoints.same_training) {
    check_unfinished(output);
  }
  const std::string path = metrics_path(output);
  const bool goes_on = checkpoints.same_training && reporting::truncate_metrics(path, checkpoints.restored->step);
  auto metrics =
      std::make_unique<Metrics>(path, goes_on ? files::JsonLinesMode::kAppend : files::JsonLinesMode::kReplace);
  if (!goes_on) {
    metrics->on_start(agreed.plan);
  }
  if (checkpoints.restored.has_value()) {
    metrics->on_resume(
        {.step = checkpoints.restored->step, .path = checkpoints.restored->path, .changes = checkpoints.changes});
  }
  return metrics;
}

}  // namespace

std::string model_path(const OutputOptions& output) { return fs::path(output.folder) / "model.safetensors"; }
std::string metrics_path(const OutputOptions& output) { return fs::path(output.folder) / "metrics.jsonl"; }

void check_output(const TrainJob& job) {
  const OutputOptions& output = job.output;
  TORCH_CHECK_VALUE(output.sample_length >= 0, "sample_length: must be at least 0, but is ", output.sample_length);
  if (!output.folder.empty() && !output.overwrite && !job.checkpoints.resume) {
    check_absent(model_path(output));
    check_absent(metrics_path(output));
  }
}

std::unique_ptr<Metrics> prepare_output(const AgreedJob& agreed, const JobCheckpoints& checkpoints) {
  std::unique_ptr<Metrics> metrics;
  std::string unwritten;  // Why rank 0 could open the file, but not write to it: another class of error.
  const std::string failure = checkpoint::first_failure(agreed.group, [&] {
    if (agreed.context.env.rank == 0 && !agreed.job.output.folder.empty()) {
      try {
        metrics = open_metrics(agreed, checkpoints);
      } catch (const OutputError& error) {
        unwritten = error.what_without_backtrace();
      }
    }
  });
  TORCH_CHECK_VALUE(failure.empty(), failure);
  unwritten = checkpoint::from_rank_0(agreed.group, unwritten);
  NARROWCAST_CHECK_OUTPUT(unwritten.empty(), unwritten);
  return metrics;
}

}  // namespace narrowcast::job
