#include "trainer/train/options/output_rows.h"

#include <string>

namespace narrowcast::options {

using nlohmann::json;
using program::variable;

namespace {

std::vector<Option> report_rows(job::TrainJob& job) {
  training::TrainingOptions& training = job.training;
  return {
      {.flag = "check_replicas_every",
       .variable = variable(training.check_replicas_every),
       .help = "Steps between bitwise comparisons of replicas and optimizers, also made before each checkpoint; 0: "
               "only then. A difference ends the training with code 1.",
       .unit = "steps",
       .range = at_least(0),
       .in_plan = InPlan::kValue,
       .planned = [&job] { return keeps_replicas_equal(job) ? json(job.training.check_replicas_every) : json(); }},
      {.flag = "eval_every",
       .variable = variable(training.eval_every),
       .help = "Steps between evaluations on held-out data; 0: only after the last step.",
       .unit = "steps",
       .range = at_least(0),
       .in_plan = InPlan::kValue},
      {.flag = "eval_batches",
       .variable = variable(training.eval_batches),
       .help = "Held-out batches of --batch_size per evaluation; 0: no evaluation.",
       .range = at_least(0),
       .in_plan = InPlan::kValue},
      {.flag = "early_stop",
       .variable = variable(training.early_stop),
       .help = "End after this number of consecutive evaluations without a lower loss; 0: never. Needs --eval_every.",
       .range = at_least(0),
       .in_plan = InPlan::kValue,
       .planned = [&training] { return if_above_zero(training.early_stop); }},
      {.flag = "log_every",
       .variable = variable(training.log_every),
       .help = "Steps between reports on the progress line and in the metrics.",
       .unit = "steps",
       .range = at_least(1),
       .in_plan = InPlan::kValue}};
}

}  // namespace

std::vector<Option> output_rows(Arguments& arguments) {
  job::OutputOptions& output = arguments.job.output;
  const std::vector<Option> of_files = {
      {.flag = "sample_length",
       .variable = variable(output.sample_length),
       .help = "Characters that char_gpt or gpt generates at the end; 0: none.",
       .range = at_least(0)},
      {.flag = "output_dir",
       .variable = variable(output.folder),
       .help = "Folder for model.safetensors, metrics.jsonl and a TorchScript module's model.pt; created if missing. "
               "Default: no files."},
      {.flag = "overwrite",
       .variable = variable(output.overwrite),
       .help = "Replace the files of an earlier training in --output_dir, and its checkpoints."},
      {.flag = "prometheus_file",
       .variable = variable(output.prometheus_file),
       .help = "File of metrics for node_exporter (NAME.prom), replaced at each report."},
      {.flag = "tensorboard_dir",
       .variable = variable(output.tensorboard_dir),
       .help = "Folder for a TensorBoard event file; created if missing."},
      {.flag = "report",
       .variable = variable(output.report),
       .help = "Page (NAME.html) of the curves and numbers in --output_dir's metrics.jsonl, written at checkpoints and "
               "at the end."},
      {.flag = "compare",
       .variable = variable(arguments.compare),
       .help = "Instead of training, write --report of these trainings: folders with a metrics.jsonl, or such files."}};
  return joined({report_rows(arguments.job), of_files});
}

// The plan has the paths that are given. It has the other options only if there is a folder for checkpoints.
std::vector<Option> checkpoint_rows(Arguments& arguments) {
  job::CheckpointOptions& options = arguments.job.checkpoints;
  const auto with_folder = [&options](const auto& value) {
    return [&options, &value] { return options.folder.empty() ? json() : json(value); };
  };
  return {
      {.flag = "checkpoint_dir",
       .variable = variable(options.folder),
       .help = "Folder for checkpoints, shared by all nodes; created if missing. Default: no checkpoints.",
       .in_plan = InPlan::kValue},
      {.flag = "checkpoint_every",
       .variable = variable(options.every),
       .help = "Steps between checkpoints. Another one follows the last step.",
       .unit = "steps",
       .range = at_least(1),
       .in_plan = InPlan::kValue,
       .planned = with_folder(options.every)},
      {.flag = "keep_checkpoints",
       .variable = variable(options.keep),
       .help = "Number of newest checkpoints to keep. Older ones are removed after a new one is complete. 0: keep all.",
       .range = at_least(0),
       .in_plan = InPlan::kValue,
       .planned = with_folder(options.keep)},
      {.flag = "resume",
       .variable = variable(options.resume),
       .help =
           "Resume from the newest valid checkpoint in --checkpoint_dir; without checkpoints, start a new training.",
       .in_plan = InPlan::kValue,
       .planned = with_folder(options.resume)},
      {.flag = "resume_from",
       .variable = variable(options.resume_from),
       .help =
           "Resume from this checkpoint, a folder step-N. With --resume: only if --checkpoint_dir has no checkpoint.",
       .in_plan = InPlan::kValue},
      {.flag = "preemption_signals",
       .variable = variable(options.preemption_signals),
       .help = "Signals at which all ranks write a checkpoint to --checkpoint_dir and exit with code 128 + signal. A "
               "second one ends a rank immediately. Empty: none.",
       .in_plan = InPlan::kValue}};
}

std::vector<Option> check_rows(Arguments& arguments) {
  verification::VerificationOptions& verification = arguments.verification;
  return {
      {.flag = "verify_gradients",
       .variable = variable(arguments.verify_gradients),
       .help =
           "Instead of training, compare the gradients of --hook (default: all hooks) with gradients without a hook."},
      {.flag = "dump_gradients",
       .variable = variable(verification.dump_folder),
       .help = "With --verify_gradients: folder for each rank's final gradients, HOOK.rankR.safetensors."},
      {.flag = "tolerance_scale",
       .variable = variable(verification.tolerance_scale),
       .help = "With --verify_gradients: factor by which every tolerance is multiplied.",
       .unit = "positive"},
      {.flag = "dry_run",
       .variable = variable(arguments.job.dry_run),
       .help = "Check everything, including the data, print the plan and end."}};
}

}  // namespace narrowcast::options
