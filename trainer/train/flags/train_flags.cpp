#include "trainer/train/flags/train_flags.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/hooks.h>
#include <narrowcast/version.h>
#include "hooks/table/hook_table.h"
#include "models/table/model_table.h"
#include "trainer/train/flags/exchange_flags.h"
#include "trainer/train/flags/model_flags.h"
#include "trainer/train/flags/worker_flags.h"
#include "trainer/train/options/option_table.h"

namespace narrowcast {
namespace {

using options::Group;

constexpr const char* kCheckpointDir = "checkpoint_dir";

// The hook of the job. The default for a single process is no hook, unless the launcher has a run id: such a launcher
// may restart the job with more processes, which resume with the same hook.
std::string hook_of(const Given& given, const WorkerEnv& env) {
  const std::string& named = given.arguments.job.ddp.hook();
  const bool is_alone = env.world_size == 1 && env.run_id.empty();
  if (given.has("hook")) {
    return named;
  }
  if (takes_local_steps(given)) {
    return hooks::kPostLocalSgdHook;
  }
  return is_alone || given.arguments.verify_gradients ? hooks::kNoHook : named;
}

bool is_of_power_sgd(const hooks::NamedOption& option) {
  return option.kind == hooks::OptionKind::kPowerSgd || option.kind == hooks::OptionKind::kPowerSgdOfMatrices;
}

void refuse_with_verification(const Given& given, const std::string& hook) {
  for (const Group group :
       {Group::kTraining, Group::kProcessors, Group::kOutput, Group::kCheckpoints, Group::kExchange}) {
    refuse(given, options::unverified_flags_of(group), "with --verify_gradients");
  }
  for (const hooks::NamedOption& option : OuterOptions().named()) {
    if (hooks::hook_row(hook).averages_in_groups) {
      refuse(given, {option.name}, "with --verify_gradients of the hook '" + hook + "'");
    }
  }
  const std::vector<std::string> verified = verification::verified_power_sgd_options();
  for (const hooks::NamedOption& option : hooks::named_options({})) {
    if (is_of_power_sgd(option) && std::ranges::find(verified, option.name) == verified.end()) {
      refuse(given, {option.name}, "with --verify_gradients, which chooses the rank at which the mean is exact");
    }
  }
  if (!given.has("hook")) {
    refuse(given, hook_flags(), "with --verify_gradients of all hooks; give --hook");
  }
}

void refuse_useless_job_flags(const Given& given, const std::string& hook) {
  refuse(given, options::flags_of(Group::kTrainedModel), "without --evaluate");
  const job::TrainJob& asked = given.arguments.job;
  const models::ModelRow& model = given_model(given);
  if (given.arguments.verify_gradients) {
    refuse_with_verification(given, hook);
  } else {
    refuse(given, {"dump_gradients", "tolerance_scale"}, "without --verify_gradients");
    TORCH_CHECK_VALUE(model.learns(), "--model: ", model.name, " is only for --verify_gradients; it cannot be trained");
  }
  if (given.has("hook") && hooks::hook_row(hook).averages_in_groups && !given.arguments.verify_gradients) {
    TORCH_CHECK_VALUE(takes_local_steps(given), "--hook=", hook, ": needs --sync_every or --sync_seconds, the number ",
                      "of steps or seconds between averages of all ranks' parameters");
  }
  if (asked.training.optimizer.kind == training::OptimizerKind::kAdamW) {
    refuse(given, {"momentum"}, "with --optimizer=adamw");
  }
  if (asked.training.optimizer.kind != training::OptimizerKind::kMuon) {
    refuse(given, {"adamw_learning_rate", "adamw_parameters"}, "without --optimizer=muon");
  }
  if (asked.training.eval_batches == 0) {
    refuse(given, {"eval_every"}, "with --eval_batches=0");
  }
  if (!hooks::hook_row(hook).keeps_replicas_equal) {
    refuse(given, {"check_replicas_every"}, "with the hook '" + hook + "', which lets replicas differ");
  }
  if (!asked.training.skip_nonfinite_steps) {
    refuse(given, {"max_skipped_steps"}, "with --noskip_nonfinite_steps");
  }
  refuse_other_hooks_options(given, hook);
  refuse_other_models_options(given);
  if (asked.output.folder.empty() && !given.has(kCheckpointDir)) {
    refuse(given, {"overwrite"}, "without --output_dir and --checkpoint_dir");
  }
  if (asked.output.folder.empty()) {
    refuse(given, {"report"}, "without --output_dir, whose metrics.jsonl it shows, or --compare");
  }
}

// Sets defaults that depend on the optimizer: momentum, and the learning rate of sgd.
void fit_to_optimizer(const Given& given, training::TrainingOptions& options) {
  if (!given.has("momentum")) {
    options.optimizer.momentum = training::usual_momentum(options.optimizer.kind);
  }
  if (options.optimizer.kind == training::OptimizerKind::kSgd && !given.has("learning_rate")) {
    options.learning_rate.peak = options::kSgdLearningRate;
  }
}

void check_folder(const Given& given, const std::string& flag, const std::string& value) {
  TORCH_CHECK_VALUE(!given.has(flag) || !value.empty(), "--", flag, ": must name a folder");
}

void check_output_flags(const Given& given) {
  const job::OutputOptions& output = given.arguments.job.output;
  check_file(given.line, "prometheus_file", output.prometheus_file);
  check_folder(given, "tensorboard_dir", output.tensorboard_dir);
  check_file(given.line, "report", output.report);
}

// Without a folder for checkpoints no signals are caught, because each of them requests a checkpoint.
job::CheckpointOptions read_checkpoints(const Given& given) {
  job::CheckpointOptions options = given.arguments.job.checkpoints;
  check_folder(given, kCheckpointDir, options.folder);
  check_folder(given, "resume_from", options.resume_from);
  if (options.folder.empty()) {
    refuse(given, {"checkpoint_every", "keep_checkpoints", "resume", "preemption_signals"}, "without --checkpoint_dir");
    options.preemption_signals.clear();
  }
  if (options.resume) {
    refuse(given, {"overwrite"}, "with --resume, which keeps existing checkpoints");
  }
  return options;
}

std::optional<verification::VerificationOptions> read_verification(const Given& given, const std::string& hook) {
  if (!given.arguments.verify_gradients) {
    return std::nullopt;
  }
  verification::VerificationOptions options = given.arguments.verification;
  options.hooks = given.has("hook") ? std::vector<std::string>{hook} : hooks::comm_hook_names();
  options.reference_task = !given_model(given).learns();
  return options;
}

// A verification uses two bucket layouts, both of a known size.
void give_bucket_size(const Given& given, DdpOptions& ddp) {
  if (!ddp.bucket_cap_mb().has_value()) {
    refuse(given, {"bucket_cap_mb"}, "as auto with --verify_gradients; give a number");
    ddp.bucket_cap_mb(DdpOptions().bucket_cap_mb());
  }
}

}  // namespace

program::Description train_description(options::Arguments& arguments) {
  return {.name = "narrowcast-train",
          .version = version(),
          .summary = "trains a model on all ranks of a job, or verifies the gradients of the communication hooks.",
          .usage = "[narrowcast-run --nproc_per_node=N] narrowcast-train [flags]",
          .flags = options::all_flags(arguments),
          .groups = options::flag_groups(),
          .examples = {{"train on two processes with 8-bit gradients, over a simulated network of 1 Gbit/s",
                        "narrowcast-run --nproc_per_node=2 --simulate_gbit=1 narrowcast-train --model=char_gpt "
                        "--data=book.txt --hook=int8 --output_dir=runs/book"},
                       {"train your own TorchScript module (docs/guide/your-model.md)",
                        "narrowcast-run --nproc_per_node=2 narrowcast-train --model=net.pt --loss=cross_entropy "
                        "--data=digits --output_dir=runs/net"},
                       {"fine-tune GPT-2 with weights from Hugging Face",
                        "narrowcast-run --nproc_per_node=2 narrowcast-train --model=gpt --init_from=gpt2.safetensors "
                        "--data=tokens --learning_rate=3e-5 --output_dir=runs/gpt2"},
                       {"resume after an interruption: the same command again",
                        "narrowcast-run --nproc_per_node=2 narrowcast-train --data=book.txt "
                        "--checkpoint_dir=runs/book/checkpoints --resume"},
                       {"evaluate a trained model, and generate text",
                        "narrowcast-train --evaluate=runs/book/model.safetensors --data=book.txt --generate=500"},
                       {"compare two trainings in a browser",
                        "narrowcast-train --compare=runs/book,runs/net --report=trainings.html"},
                       {"print the plan without training", "narrowcast-train --data=book.txt --dry_run"},
                       {"verify every hook's gradients on the task of PyTorch's test",
                        "narrowcast-run --nproc_per_node=2 narrowcast-train --model=ddp_comm_hook_task "
                        "--verify_gradients"}},
          .exit_codes = program::common_exit_codes(),
          .exit_note = "128 + N if signal N ended the training, after a checkpoint (--preemption_signals)."};
}

job::TrainJob read_train_job(const Given& given, const WorkerEnv& env) {
  const std::string hook = hook_of(given, env);
  refuse_useless_job_flags(given, hook);
  job::TrainJob job = given.arguments.job;
  job.version = version();
  job.model_options = read_model_options(given);
  check_patience(given.line, job.group);
  job.ddp = read_ddp(given, hook);
  job.outer = read_outer(given);
  fit_to_optimizer(given, job.training);
  check_output_flags(given);
  job.checkpoints = read_checkpoints(given);
  job.verification = read_verification(given, hook);
  if (job.verification.has_value()) {
    give_bucket_size(given, job.ddp);
  }
  return job;
}

std::optional<Comparison> read_comparison(const Given& given) {
  if (!given.has("compare")) {
    return std::nullopt;
  }
  refuse_all_but(given, {"compare", "report"}, "with --compare");
  const std::vector<std::string>& trainings = given.arguments.compare;
  TORCH_CHECK_VALUE(!trainings.empty() && std::ranges::find(trainings, "") == trainings.end(),
                    "--compare: must name folders with a metrics.jsonl, or such files");
  const std::string& report = given.arguments.job.output.report;
  TORCH_CHECK_VALUE(!report.empty(), "--compare: needs --report, the page to write");
  return Comparison{.trainings = trainings, .report = report};
}

}  // namespace narrowcast
