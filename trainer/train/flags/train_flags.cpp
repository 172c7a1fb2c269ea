#include "trainer/train/flags/train_flags.h"
#include "trainer/ddp/optimization/default_shares.h"

#include <absl/flags/declare.h>
#include <absl/flags/flag.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <narrowcast/hooks.h>
#include "hooks/table/hook_table.h"
#include "models/model_table.h"
#include "trainer/base/program/path_list.h"
#include "trainer/train/flags/worker_flags.h"
#include "trainer/train/job/job_checkpoints.h"

ABSL_DECLARE_FLAG(double, dropout);
ABSL_DECLARE_FLAG(std::string, hook);
ABSL_DECLARE_FLAG(std::string, init_from);
ABSL_DECLARE_FLAG(double, label_smoothing);
ABSL_DECLARE_FLAG(std::string, loss);
ABSL_DECLARE_FLAG(std::string, model);

namespace {

using narrowcast::ScheduleKind;
using narrowcast::training::Precision;
const narrowcast::training::TrainingOptions kTraining;
const narrowcast::training::OptimizerOptions kOptimizer;
const narrowcast::LearningRateOptions kLearningRate;
const narrowcast::LearningRateSchedule kFilledIn(kLearningRate, kTraining.steps);
const narrowcast::LearningRateSchedule kOfWsd({.schedule = ScheduleKind::kWsd}, kTraining.steps);
const narrowcast::job::OutputOptions kOutput;
constexpr double kSgdLearningRate = 0.1;
constexpr double kSgdMomentum = 0.9;

}  // namespace

ABSL_FLAG(narrowcast::program::PathList, data, {},
          "char_gpt, gpt: text files or folders of them, separated by commas (\\, is a comma in a path), or a folder "
          "of token files (train.bin, "
          "val.bin). mlp: a folder of MNIST-style IDX files, or of inputs and targets (train*.safetensors, "
          "train_inputs.npy). A TorchScript module: any. Without it the text is Tiny Shakespeare, which comes with "
          "narrowcast.");
ABSL_FLAG(int64_t, seed, 0, "Seed of the initial parameters, the order of the data, dropout and the sample.");

ABSL_FLAG(int64_t, steps, kTraining.steps, "Optimizer steps.");
ABSL_FLAG(int64_t, batch_size, kTraining.batch_size,
          "Samples (sequences, images) per optimizer step, over all ranks: the same training for any number of ranks. "
          "A multiple of ranks * --accumulation_steps.");
ABSL_FLAG(int64_t, accumulation_steps, kTraining.accumulation_steps,
          "Backward passes per optimizer step; gradients are exchanged in the last only.");
ABSL_FLAG(std::string, optimizer, to_string(kOptimizer.kind),
          absl::StrCat(narrowcast::training::optimizer_names(), "."));
ABSL_FLAG(double, learning_rate, kLearningRate.peak,
          absl::StrCat("Peak learning rate, above 0 (sgd: ", kSgdLearningRate, " if not given)."));
ABSL_FLAG(std::string, schedule, to_string(kLearningRate.schedule),
          absl::StrCat("After the warm-up: ", to_string(ScheduleKind::kCosine), " or ",
                       to_string(ScheduleKind::kLinear), " (both down to --min_learning_rate), ",
                       to_string(ScheduleKind::kConstant), ", or ", to_string(ScheduleKind::kWsd),
                       " (--decay_steps)."));
ABSL_FLAG(double, min_learning_rate, kFilledIn.minimum(),
          absl::StrCat("Where the schedule ends; ", narrowcast::kMinimumOfPeak.text,
                       " of --learning_rate if not given."));
ABSL_FLAG(int64_t, warmup_steps, kFilledIn.warmup_steps(),
          absl::StrCat("Steps of linear warm-up; ", narrowcast::kWarmupOfSteps.text, " of --steps if not given."));
ABSL_FLAG(int64_t, decay_steps, kOfWsd.decay_steps(),
          absl::StrCat("Last steps, in which ", to_string(ScheduleKind::kWsd),
                       " falls in a line after it was constant; ", narrowcast::kDecayOfSteps.text,
                       " of --steps if not given."));
ABSL_FLAG(double, weight_decay, kOptimizer.weight_decay, "Decay of parameters with two dimensions or more.");
ABSL_FLAG(double, momentum, kSgdMomentum, "Momentum of sgd, 0 to below 1.");
ABSL_FLAG(double, clip_grad_norm, kTraining.clip_grad_norm, "Largest 2-norm of the averaged gradients; 0: no limit.");
ABSL_FLAG(bool, skip_nonfinite_steps, kTraining.skip_nonfinite_steps,
          "A step with a gradient that is Inf or NaN leaves parameters and buffers as they were; all ranks do alike.");

ABSL_FLAG(int64_t, max_skipped_steps, kTraining.max_skipped_steps,
          "So many skipped steps in a row end the training with code 1 at its next report, naming the ranks whose "
          "gradients were not finite.");

ABSL_FLAG(std::string, precision, to_string(kTraining.precision),
          absl::StrCat("Of forward and backward passes: ", to_string(Precision::kFp32), ", ",
                       to_string(Precision::kBf16), " (autocast) or ", to_string(Precision::kFp16),
                       " (autocast, with scaled loss). Parameters and gradients stay float32."));

ABSL_FLAG(int64_t, eval_every, kTraining.eval_every,
          "Steps between looks at the held-out data; 0: only after the last step.");
ABSL_FLAG(int64_t, eval_batches, kTraining.eval_batches, "Held-out batches of --batch_size in one look; 0: none.");
ABSL_FLAG(int64_t, early_stop, 0, "End when so many looks in a row find no lower loss; 0: never. Needs --eval_every.");
ABSL_FLAG(int64_t, log_every, kTraining.log_every, "Steps between reports to the progress line and the metrics.");
ABSL_FLAG(
    int64_t, check_replicas_every, kTraining.check_replicas_every,
    "Steps between comparisons of the ranks' parameters and optimizers, bit for bit, which are also compared before "
    "each checkpoint; 0: only then. Ranks that differ end the training with code 1.");
ABSL_FLAG(int64_t, sample_length, kOutput.sample_length, "Characters that char_gpt or gpt writes at the end; 0: none.");
ABSL_FLAG(std::string, output_dir, "",
          "Folder for model.safetensors, of a TorchScript module also model.pt, and metrics.jsonl; made if it is not "
          "there. Without it nothing is written.");
ABSL_FLAG(std::string, prometheus_file, "", "File of metrics for node_exporter (NAME.prom), replaced at each report.");
ABSL_FLAG(std::string, tensorboard_dir, "",
          "Folder for an event file that TensorBoard reads; made if it is not there.");
ABSL_FLAG(
    std::string, report, "",
    "Page (NAME.html) of the curves and numbers in --output_dir's metrics.jsonl, written at checkpoints and the end.");
ABSL_FLAG(narrowcast::program::PathList, compare, {},
          "Instead of training, write --report of these: folders with a metrics.jsonl, or such files.");
ABSL_FLAG(bool, overwrite, false, "Replace the files of an earlier training in --output_dir, and its checkpoints.");

ABSL_FLAG(std::string, backend, "auto", "gloo (tensors on the CPU), nccl (on GPUs), or auto: what --device needs.");

ABSL_FLAG(bool, verify_gradients, false,
          "Instead of training, compare every hook's gradients (or those of --hook, if given) with the gradients "
          "without a hook.");
ABSL_FLAG(std::string, dump_gradients, "",
          "With --verify_gradients: folder for HOOK.rankR.safetensors, the gradients that each rank ended with.");
ABSL_FLAG(double, tolerance_scale, 1, "With --verify_gradients: multiplies every tolerance.");
ABSL_FLAG(bool, dry_run, false, "Check everything, data included, print the plan and end.");

namespace narrowcast {
namespace {

using program::CommandLine;

// Groups of the help. A verification takes one batch, and none of the rest of these.
const std::vector<std::string> kTrainingFlags = {
    "steps",    "batch_size",        "accumulation_steps",   "optimizer",        "learning_rate",
    "schedule", "min_learning_rate", "warmup_steps",         "decay_steps",      "weight_decay",
    "momentum", "clip_grad_norm",    "skip_nonfinite_steps", "max_skipped_steps"};
const std::vector<std::string> kOutputFlags = {
    "check_replicas_every", "eval_every", "eval_batches",    "early_stop",      "log_every", "sample_length",
    "output_dir",           "overwrite",  "prometheus_file", "tensorboard_dir", "report",    "compare"};
const std::vector<std::string> kCheckpointFlags = job::checkpoint_entry_names();

// The hook that is asked for. By itself none where there is nobody to send to, nor ever will be: a launcher with a run
// id may start the job again with more processes, which resume with the same hook.
std::string hook_of(const CommandLine& line, const WorkerEnv& env) {
  const bool is_alone = env.world_size == 1 && env.run_id.empty();
  if (line.given("hook")) {
    return absl::GetFlag(FLAGS_hook);
  }
  if (line.given("sync_every")) {
    return hooks::kPostLocalSgdHook;
  }
  return is_alone || absl::GetFlag(FLAGS_verify_gradients) ? hooks::kNoHook : absl::GetFlag(FLAGS_hook);
}

void refuse_with_verification(const CommandLine& line, const std::string& hook) {
  std::vector<std::string> of_steps = kTrainingFlags;
  std::erase(of_steps, "batch_size");
  of_steps.push_back("precision");
  for (const auto& flags : {of_steps, kOutputFlags, kCheckpointFlags}) {
    refuse(line, flags, "with --verify_gradients");
  }
  for (const hooks::NamedOption& option : OuterOptions().named()) {
    if (option.kind == hooks::OptionKind::kLocal) {
      refuse(line, {option.name}, "with --verify_gradients");
    } else if (hooks::hook_row(hook).averages_in_groups) {
      refuse(line, {option.name}, "with --verify_gradients of the hook '" + hook + "'");
    }
  }
  std::vector<std::string> of_power_sgd = power_sgd_flags();
  for (const std::string& option : verification::verified_power_sgd_options()) {
    std::erase(of_power_sgd, option);
  }
  refuse(line, of_power_sgd, "with --verify_gradients, which compresses to the rank that gives the mean itself");
  if (!line.given("hook")) {
    for (const auto& flags : {hook_option_flags(), local_flags(), power_sgd_flags()}) {
      refuse(line, flags, "with --verify_gradients of all hooks; give --hook");
    }
  }
}

void refuse_useless_job_flags(const CommandLine& line, const std::string& hook) {
  refuse(line, evaluation_flags(), "without --evaluate");
  const models::ModelRow& model = given_model();
  if (absl::GetFlag(FLAGS_verify_gradients)) {
    refuse_with_verification(line, hook);
  } else {
    refuse(line, {"dump_gradients", "tolerance_scale"}, "without --verify_gradients");
    TORCH_CHECK_VALUE(model.learns(), "--model: ", model.name,
                      " is there for --verify_gradients only; it has nothing to learn");
  }
  if (line.given("hook") && hooks::hook_row(hook).averages_in_groups && !absl::GetFlag(FLAGS_verify_gradients)) {
    TORCH_CHECK_VALUE(line.given("sync_every"), "--hook=", hook, ": needs --sync_every, after how many steps the ",
                      "parameters of all ranks meet");
  }
  if (absl::GetFlag(FLAGS_optimizer) == to_string(training::OptimizerKind::kAdamW)) {
    refuse(line, {"momentum"}, "with --optimizer=adamw");
  }
  if (absl::GetFlag(FLAGS_eval_batches) == 0) {
    refuse(line, {"eval_every"}, "with --eval_batches=0");
  }
  if (!hooks::hook_row(hook).keeps_replicas_equal) {
    refuse(line, {"check_replicas_every"}, "with the hook '" + hook + "', which lets replicas differ");
  }
  if (!absl::GetFlag(FLAGS_skip_nonfinite_steps)) {
    refuse(line, {"max_skipped_steps"}, "with --noskip_nonfinite_steps");
  }
  refuse_other_hooks_options(line, hook);
  refuse_other_models_options(line);
  if (absl::GetFlag(FLAGS_output_dir).empty() && !line.given("checkpoint_dir")) {
    refuse(line, {"overwrite"}, "without --output_dir and --checkpoint_dir");
  }
  if (absl::GetFlag(FLAGS_output_dir).empty()) {
    refuse(line, {"report"}, "without --output_dir, whose metrics.jsonl it shows, or --compare");
  }
}

training::OptimizerOptions read_optimizer() {
  training::OptimizerOptions options;
  options.kind = training::parse_optimizer(absl::GetFlag(FLAGS_optimizer));
  options.weight_decay = absl::GetFlag(FLAGS_weight_decay);
  options.momentum = options.kind == training::OptimizerKind::kSgd ? absl::GetFlag(FLAGS_momentum) : 0;
  return options;
}

LearningRateOptions read_learning_rate(const CommandLine& line, training::OptimizerKind optimizer) {
  LearningRateOptions options;
  const bool sgd_default = optimizer == training::OptimizerKind::kSgd && !line.given("learning_rate");
  options.peak = sgd_default ? kSgdLearningRate : absl::GetFlag(FLAGS_learning_rate);
  options.schedule = parse_schedule_kind(absl::GetFlag(FLAGS_schedule));
  if (line.given("min_learning_rate")) {
    options.minimum = absl::GetFlag(FLAGS_min_learning_rate);
  }
  if (line.given("warmup_steps")) {
    options.warmup_steps = absl::GetFlag(FLAGS_warmup_steps);
  }
  options.decay_steps = line.given("decay_steps") ? std::optional(absl::GetFlag(FLAGS_decay_steps)) : std::nullopt;
  return options;
}

training::TrainingOptions read_training(const CommandLine& line) {
  training::TrainingOptions options;
  options.steps = absl::GetFlag(FLAGS_steps);
  options.batch_size = absl::GetFlag(FLAGS_batch_size);
  options.accumulation_steps = absl::GetFlag(FLAGS_accumulation_steps);
  options.optimizer = read_optimizer();
  options.learning_rate = read_learning_rate(line, options.optimizer.kind);
  options.clip_grad_norm = absl::GetFlag(FLAGS_clip_grad_norm);
  options.skip_nonfinite_steps = absl::GetFlag(FLAGS_skip_nonfinite_steps);
  options.max_skipped_steps = absl::GetFlag(FLAGS_max_skipped_steps);
  options.precision = training::parse_precision(absl::GetFlag(FLAGS_precision));
  options.eval_every = absl::GetFlag(FLAGS_eval_every);
  options.eval_batches = absl::GetFlag(FLAGS_eval_batches);
  options.early_stop = absl::GetFlag(FLAGS_early_stop);
  options.log_every = absl::GetFlag(FLAGS_log_every);
  options.check_replicas_every = absl::GetFlag(FLAGS_check_replicas_every);
  options.seed = static_cast<uint64_t>(absl::GetFlag(FLAGS_seed));
  return options;
}

std::optional<verification::VerificationOptions> read_verification(const CommandLine& line, const std::string& hook) {
  if (!absl::GetFlag(FLAGS_verify_gradients)) {
    return std::nullopt;
  }
  verification::VerificationOptions options;
  options.hooks = line.given("hook") ? std::vector<std::string>{hook} : hooks::comm_hook_names();
  options.dump_folder = absl::GetFlag(FLAGS_dump_gradients);
  options.tolerance_scale = absl::GetFlag(FLAGS_tolerance_scale);
  options.reference_task = !given_model().learns();
  return options;
}

// A verification looks at two layouts of buckets, both of a size that is known.
void give_bucket_size(const CommandLine& line, DdpOptions& ddp) {
  if (!ddp.bucket_cap_mb().has_value()) {
    refuse(line, {"bucket_cap_mb"}, "as auto with --verify_gradients; give a number");
    ddp.bucket_cap_mb(DdpOptions().bucket_cap_mb());
  }
}

}  // namespace

void refuse(const CommandLine& line, const std::vector<std::string>& flags, const std::string& reason) {
  for (const std::string& flag : flags) {
    TORCH_CHECK_VALUE(!line.given(flag), "--", flag, ": has no effect ", reason);
  }
}

program::Description train_description() {
  std::vector<std::string> exchange = exchange_flags();
  exchange.insert(exchange.end(), {"backend", "timeout_seconds", "silence_seconds"});
  return {.name = "narrowcast-train",
          .version = NARROWCAST_VERSION,
          .summary = "trains a model on all ranks of a job, or verifies the gradients of the communication hooks.",
          .usage = "[narrowcast-run --nproc_per_node=N] narrowcast-train [flags]",
          .groups = {{"Model", model_flags()},
                     {"Data", {"data", "seed"}},
                     {"Training", kTrainingFlags},
                     {"Processors", {"device", "precision", "threads"}},
                     {"Evaluation and output", kOutputFlags},
                     {"Checkpoints", kCheckpointFlags},
                     {"Use of a trained model", evaluation_flags()},
                     {"Exchange of gradients", exchange},
                     {"Place in the job", worker_flags()},
                     {"Checks", {"verify_gradients", "dump_gradients", "tolerance_scale", "dry_run"}}},
          .examples = {{"train on two processes with 8-bit gradients, over a simulated network of 1 Gbit/s",
                        "narrowcast-run --nproc_per_node=2 --simulate_gbit=1 narrowcast-train --model=char_gpt "
                        "--data=book.txt --hook=int8 --output_dir=runs/book"},
                       {"train a TorchScript module of your own (docs/guide/your-model.md)",
                        "narrowcast-run --nproc_per_node=2 narrowcast-train --model=net.pt --loss=cross_entropy "
                        "--data=digits --output_dir=runs/net"},
                       {"fine-tune GPT-2, whose weights are a file of Hugging Face's",
                        "narrowcast-run --nproc_per_node=2 narrowcast-train --model=gpt --init_from=gpt2.safetensors "
                        "--data=tokens --learning_rate=3e-5 --output_dir=runs/gpt2"},
                       {"resume after an interruption: the same line again",
                        "narrowcast-run --nproc_per_node=2 narrowcast-train --data=book.txt --hook=int8 "
                        "--checkpoint_dir=runs/book/checkpoints --resume"},
                       {"see what a trained model is worth, and what it writes",
                        "narrowcast-train --evaluate=runs/book/model.safetensors --data=book.txt --generate=500"},
                       {"look at two trainings beside each other in a browser",
                        "narrowcast-train --compare=runs/book,runs/net --report=trainings.html"},
                       {"see what would be done", "narrowcast-train --data=book.txt --dry_run"},
                       {"verify every hook's gradients on the task of PyTorch's own test",
                        "narrowcast-run --nproc_per_node=2 narrowcast-train --model=ddp_comm_hook_task "
                        "--verify_gradients"}},
          .exit_codes = program::common_exit_codes(),
          .exit_note = "128 + N if signal N ended the training, after a checkpoint (--preemption_signals)."};
}

job::TrainJob read_train_job(const CommandLine& line, const WorkerEnv& env) {
  const std::string hook = hook_of(line, env);
  refuse_useless_job_flags(line, hook);
  job::TrainJob job;
  job.version = NARROWCAST_VERSION;
  job.model = absl::GetFlag(FLAGS_model);
  job.model_options = read_model_options(line);
  job.loss = absl::GetFlag(FLAGS_loss);
  job.init_from = absl::GetFlag(FLAGS_init_from);
  job.regularization = {.dropout = absl::GetFlag(FLAGS_dropout),
                        .label_smoothing = absl::GetFlag(FLAGS_label_smoothing)};
  job.data = absl::GetFlag(FLAGS_data).paths;
  job.vocabulary_size = given_vocabulary_size(line);
  job.seed = absl::GetFlag(FLAGS_seed);
  job.device = absl::GetFlag(FLAGS_device);
  job.threads = absl::GetFlag(FLAGS_threads);
  job.group.backend = absl::GetFlag(FLAGS_backend);
  read_patience(line, job.group);
  job.ddp = read_ddp(line, hook);
  job.outer = read_outer(line, job.ddp);
  job.training = read_training(line);
  job.output = {.folder = absl::GetFlag(FLAGS_output_dir),
                .overwrite = absl::GetFlag(FLAGS_overwrite),
                .sample_length = absl::GetFlag(FLAGS_sample_length),
                .prometheus_file = absl::GetFlag(FLAGS_prometheus_file),
                .tensorboard_dir = absl::GetFlag(FLAGS_tensorboard_dir),
                .report = absl::GetFlag(FLAGS_report)};
  check_file(line, "prometheus_file", job.output.prometheus_file);
  check_folder(line, "tensorboard_dir", job.output.tensorboard_dir);
  check_file(line, "report", job.output.report);
  job.checkpoints = read_checkpoints(line);
  job.verification = read_verification(line, job.ddp.hook());
  if (job.verification.has_value()) {
    give_bucket_size(line, job.ddp);
  }
  job.dry_run = absl::GetFlag(FLAGS_dry_run);
  return job;
}

std::optional<Comparison> read_comparison(const CommandLine& line) {
  if (!line.given("compare")) {
    return std::nullopt;
  }
  refuse_all_but(line, {"compare", "report"}, "with --compare");
  const std::vector<std::string> trainings = absl::GetFlag(FLAGS_compare).paths;
  TORCH_CHECK_VALUE(!trainings.empty() && std::ranges::find(trainings, "") == trainings.end(),
                    "--compare: must name folders with a metrics.jsonl, or such files");
  TORCH_CHECK_VALUE(!absl::GetFlag(FLAGS_report).empty(), "--compare: needs --report, the page to write");
  return Comparison{.trainings = trainings, .report = absl::GetFlag(FLAGS_report)};
}

}  // namespace narrowcast
