// The options of evaluations, of what is written, of checkpoints, and of checks instead of a training.
#include <string>

#include "trainer/train/options/option_rows.h"

namespace narrowcast::options {

using nlohmann::json;
using program::variable;

namespace {

std::vector<Option> report_rows(job::TrainJob& job) {
  training::TrainingOptions& training = job.training;
  return {{.flag = "check_replicas_every",
           .variable = variable(training.check_replicas_every),
           .help = "Steps between comparisons of the ranks' parameters and optimizers, bit for bit, which are also "
                   "compared before each checkpoint; 0: only then. Ranks that differ end the training with code 1.",
           .unit = "steps",
           .range = at_least(0),
           .in_plan = InPlan::kValue,
           .planned = [&job] { return keeps_replicas_equal(job) ? json(job.training.check_replicas_every) : json(); }},
          {.flag = "eval_every",
           .variable = variable(training.eval_every),
           .help = "Steps between looks at the held-out data; 0: only after the last step.",
           .unit = "steps",
           .range = at_least(0),
           .in_plan = InPlan::kValue},
          {.flag = "eval_batches",
           .variable = variable(training.eval_batches),
           .help = "Held-out batches of --batch_size in one look; 0: none.",
           .range = at_least(0),
           .in_plan = InPlan::kValue},
          {.flag = "early_stop",
           .variable = variable(training.early_stop),
           .help = "End when so many looks in a row find no lower loss; 0: never. Needs --eval_every.",
           .range = at_least(0),
           .in_plan = InPlan::kValue,
           .planned = [&training] { return if_above_zero(training.early_stop); }},
          {.flag = "log_every",
           .variable = variable(training.log_every),
           .help = "Steps between reports to the progress line and the metrics.",
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
       .help = "Characters that char_gpt or gpt writes at the end; 0: none.",
       .range = at_least(0)},
      {.flag = "output_dir",
       .variable = variable(output.folder),
       .help = "Folder for model.safetensors, of a TorchScript module also model.pt, and metrics.jsonl; made if it is "
               "not there. Without it nothing is written."},
      {.flag = "overwrite",
       .variable = variable(output.overwrite),
       .help = "Replace the files of an earlier training in --output_dir, and its checkpoints."},
      {.flag = "prometheus_file",
       .variable = variable(output.prometheus_file),
       .help = "File of metrics for node_exporter (NAME.prom), replaced at each report."},
      {.flag = "tensorboard_dir",
       .variable = variable(output.tensorboard_dir),
       .help = "Folder for an event file that TensorBoard reads; made if it is not there."},
      {.flag = "report",
       .variable = variable(output.report),
       .help = "Page (NAME.html) of the curves and numbers in --output_dir's metrics.jsonl, written at checkpoints and "
               "the end."},
      {.flag = "compare",
       .variable = variable(arguments.compare),
       .help = "Instead of training, write --report of these: folders with a metrics.jsonl, or such files."}};
  return joined({report_rows(arguments.job), of_files});
}

// The plan has the paths that are given, and with a folder for checkpoints all the rest.
std::vector<Option> checkpoint_rows(Arguments& arguments) {
  job::CheckpointOptions& options = arguments.job.checkpoints;
  const auto with_folder = [&options](const auto& value) {
    return [&options, &value] { return options.folder.empty() ? json() : json(value); };
  };
  return {{.flag = "checkpoint_dir",
           .variable = variable(options.folder),
           .help = "Folder for checkpoints, made if it is not there; nodes must share it. Without it none are written.",
           .in_plan = InPlan::kValue},
          {.flag = "checkpoint_every",
           .variable = variable(options.every),
           .help = "Steps between checkpoints; there is one after the last step, too.",
           .unit = "steps",
           .range = at_least(1),
           .in_plan = InPlan::kValue,
           .planned = with_folder(options.every)},
          {.flag = "keep_checkpoints",
           .variable = variable(options.keep),
           .help = "Newest checkpoints that are kept; older ones are removed when a new one is whole. 0: all.",
           .range = at_least(0),
           .in_plan = InPlan::kValue,
           .planned = with_folder(options.keep)},
          {.flag = "resume",
           .variable = variable(options.resume),
           .help = "Resume from the newest valid checkpoint in --checkpoint_dir, or start anew if there is none: the "
                   "same command line starts a training and resumes it.",
           .in_plan = InPlan::kValue,
           .planned = with_folder(options.resume)},
          {.flag = "resume_from",
           .variable = variable(options.resume_from),
           .help = "Resume from this checkpoint, a folder step-N; with --resume only if there is none in "
                   "--checkpoint_dir.",
           .in_plan = InPlan::kValue},
          {.flag = "preemption_signals",
           .variable = variable(options.preemption_signals),
           .help = "With --checkpoint_dir: signals for which all ranks write a checkpoint after the same step and end "
                   "with code 128 + the signal's number. A second signal ends a rank at once. Empty: none.",
           .in_plan = InPlan::kValue}};
}

std::vector<Option> check_rows(Arguments& arguments) {
  verification::VerificationOptions& verification = arguments.verification;
  return {{.flag = "verify_gradients",
           .variable = variable(arguments.verify_gradients),
           .help = "Instead of training, compare every hook's gradients (or those of --hook, if given) with the "
                   "gradients without a hook."},
          {.flag = "dump_gradients",
           .variable = variable(verification.dump_folder),
           .help = "With --verify_gradients: folder for HOOK.rankR.safetensors, the gradients that each rank ended "
                   "with."},
          {.flag = "tolerance_scale",
           .variable = variable(verification.tolerance_scale),
           .help = "With --verify_gradients: multiplies every tolerance.",
           .unit = "positive"},
          {.flag = "dry_run",
           .variable = variable(arguments.job.dry_run),
           .help = "Check everything, data included, print the plan and end."}};
}

}  // namespace narrowcast::options
