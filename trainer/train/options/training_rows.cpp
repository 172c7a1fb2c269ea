#include "trainer/train/options/training_rows.h"

#include <absl/strings/str_cat.h>

#include <string>

#include <narrowcast/learning_rate.h>
#include "models/table/model_table.h"
#include "trainer/ddp/optimization/default_shares.h"

namespace narrowcast::options {

using nlohmann::json;
using program::variable;
using training::Precision;
using training::TrainingOptions;

namespace {

LearningRateSchedule schedule_of(const TrainingOptions& options) { return {options.learning_rate, options.steps}; }

std::string name_of(ScheduleKind kind) { return to_string(kind); }

program::Variable shares_variable(data::Shares& shares) {
  const auto text = [&shares] { return data::to_string(shares); };
  return {.type = "text",
          .text = text(),
          .set =
              [&shares](const std::string& given, std::string& /*reason*/) {
                shares = data::parse_shares(given);
                return true;
              },
          .value = [text] { return json(text()); }};
}

std::vector<Option> batch_rows(job::TrainJob& job) {
  TrainingOptions& training = job.training;
  return {
      {.flag = "steps",
       .variable = variable(training.steps),
       .help = "Optimizer steps.",
       .range = at_least(1),
       .in_plan = InPlan::kValue,
       .role = Role::kSetting,
       .resume_note = "must be the same; free with --schedule=constant, and with wsd before its decay"},
      {.flag = "batch_size",
       .variable = variable(training.batch_size),
       .help = "Samples (sequences, images) per optimizer step, summed over all ranks. Must be a multiple of ranks * "
               "--accumulation_steps, except with a list of --shares.",
       .range = at_least(1),
       .in_plan = InPlan::kValue,
       .role = Role::kSetting,
       .planned = [&job] { return models::any_model_row(job.model).learns() ? json(job.training.batch_size) : json(); },
       .verified = true},
      {.flag = "accumulation_steps",
       .variable = variable(training.accumulation_steps),
       .help = "Backward passes per optimizer step; gradients are averaged over ranks only in the last.",
       .range = at_least(1),
       .in_plan = InPlan::kValue,
       .role = Role::kCircumstance},
      {.flag = "shares",
       .variable = shares_variable(training.shares),
       .help = "Samples of each batch per rank: equal, auto (by the ranks' measured speeds) or a list: 24,8. The "
               "batch stays the same set of samples.",
       .in_plan = InPlan::kValue,
       .role = Role::kCircumstance,
       .planned = [&training] { return training.shares.are_equal() ? json() : json(data::to_string(training.shares)); },
       .verified = true},
      {.flag = "shares_with_batch_norm",
       .variable = variable(training.shares_with_batch_norm),
       .help = "Allows unequal --shares for a model with batch norm, whose statistics then depend on the shares.",
       .in_plan = InPlan::kValue,
       .role = Role::kCircumstance,
       .planned = [&training] { return training.shares.are_equal() ? json() : json(training.shares_with_batch_norm); },
       .verified = true}};
}

std::vector<Option> learning_rate_rows(TrainingOptions& training) {
  static const LearningRateSchedule usual = schedule_of({});
  static const LearningRateSchedule usual_wsd({.schedule = ScheduleKind::kWsd}, TrainingOptions().steps);
  LearningRateOptions& rate = training.learning_rate;
  return {{.flag = "learning_rate",
           .variable = variable(rate.peak),
           .help = absl::StrCat("Peak learning rate (default of sgd: ", kSgdLearningRate, ")."),
           .range = positive(),
           .in_plan = InPlan::kValue,
           .role = Role::kSetting},
          {.flag = "adamw_learning_rate",
           .variable = variable(training.adamw_learning_rate),
           .help = "With muon: peak learning rate of what AdamW steps. Default: --learning_rate.",
           .range = positive(),
           .in_plan = InPlan::kValue,
           .role = Role::kSetting,
           .planned =
               [&training] {
                 const bool is_muon = training.optimizer.kind == training::OptimizerKind::kMuon;
                 return is_muon ? json(training.adamw_learning_rate.value_or(training.learning_rate.peak)) : json();
               }},
          {.flag = "schedule",
           .variable = variable(rate.schedule, parse_schedule_kind),
           .help = absl::StrCat("Learning rate after the warm-up: ", name_of(ScheduleKind::kCosine), " or ",
                                name_of(ScheduleKind::kLinear), " (down to --min_learning_rate), ",
                                name_of(ScheduleKind::kConstant), ", or ", name_of(ScheduleKind::kWsd),
                                " (constant, then linear over --decay_steps)."),
           .in_plan = InPlan::kValue,
           .role = Role::kSetting},
          {.flag = "min_learning_rate",
           .variable = variable(rate.minimum),
           .help = absl::StrCat("Learning rate at the end of the schedule. Default: ", kMinimumOfPeak.text,
                                " of --learning_rate."),
           .usual = absl::StrCat(usual.minimum()),
           .unit = "in 0..learning_rate",
           .in_plan = InPlan::kValue,
           .role = Role::kSetting,
           .planned = [&training] { return json(schedule_of(training).minimum()); },
           .resume_note = "must be the same; free with wsd before its decay"},
          {.flag = "warmup_steps",
           .variable = variable(rate.warmup_steps),
           .help = absl::StrCat("Steps of linear warm-up. Default: ", kWarmupOfSteps.text, " of --steps."),
           .usual = absl::StrCat(usual.warmup_steps()),
           .unit = "in 0..steps",
           .in_plan = InPlan::kValue,
           .role = Role::kSetting,
           .planned = [&training] { return json(schedule_of(training).warmup_steps()); },
           .resume_note = "must be the same; free after the warm-up with constant and wsd"},
          {.flag = "decay_steps",
           .variable = variable(rate.decay_steps),
           .help = absl::StrCat("Last steps of ", name_of(ScheduleKind::kWsd),
                                ", in which the learning rate falls linearly. Default: ", kDecayOfSteps.text,
                                " of --steps."),
           .usual = absl::StrCat(usual_wsd.decay_steps()),
           .unit = "in 1..steps - warmup_steps",
           .in_plan = InPlan::kValue,
           .role = Role::kSetting,
           .planned =
               [&training] {
                 const bool decays = training.learning_rate.schedule == ScheduleKind::kWsd;
                 return decays ? json(schedule_of(training).decay_steps()) : json();
               },
           .resume_note = "must be the same; free before the decay begins"}};
}

std::vector<Option> step_rows(TrainingOptions& training) {
  return {
      {.flag = "weight_decay",
       .variable = variable(training.optimizer.weight_decay),
       .help = "Weight decay of parameters with at least two dimensions.",
       .range = at_least(0),
       .in_plan = InPlan::kValue,
       .role = Role::kSetting},
      {.flag = "momentum",
       .variable = variable(training.optimizer.momentum),
       .help = absl::StrCat("Momentum of sgd and muon (default of muon: ",
                            training::usual_momentum(training::OptimizerKind::kMuon), ")."),
       .range = share_below_one(),
       .in_plan = InPlan::kValue,
       .role = Role::kSetting},
      {.flag = "clip_grad_norm",
       .variable = variable(training.clip_grad_norm),
       .help = "Largest 2-norm of the averaged gradients; 0: no limit.",
       .range = at_least(0),
       .in_plan = InPlan::kValue,
       .role = Role::kSetting},
      {.flag = "skip_nonfinite_steps",
       .variable = variable(training.skip_nonfinite_steps),
       .help = "Skip a step, on all ranks, if a gradient is Inf or NaN: parameters and buffers do not change.",
       .in_plan = InPlan::kValue,
       .role = Role::kSetting},
      {.flag = "max_skipped_steps",
       .variable = variable(training.max_skipped_steps),
       .help = "Consecutive skipped steps after which a report ends the training with code 1 and names the ranks with "
               "non-finite gradients.",
       .range = at_least(1),
       .in_plan = InPlan::kValue,
       .planned = [&training] { return training.skip_nonfinite_steps ? json(training.max_skipped_steps) : json(); }},
      {.flag = "shard_optimizer",
       .variable = variable(training.optimizer_shards, training::parse_optimizer_shards),
       .help = "Shares the optimizer's state and work: off, node (among a node's ranks), all, or auto (node where "
               "possible; with recovery in place on several nodes).",
       .in_plan = InPlan::kValue},
      {.flag = "share_parameters",
       .variable = variable(training.share_parameters),
       .help =
           "Keeps the parameters once per node, in memory that its ranks share. Needs --shard_optimizer=node or auto.",
       .in_plan = InPlan::kValue},
      {.flag = "parameter_format",
       .variable = variable(training.parameter_format, parse_wire_format),
       .help = "With --shard_optimizer=all: the format in which ranks send changes of parameters; fp32 sends the "
               "parameters themselves.",
       .usual = "int8_b128",
       .in_plan = InPlan::kValue},
      {.flag = "shard_copies",
       .variable = variable(training.shard_copies),
       .help = "Nodes that hold each shard of --shard_optimizer=all: 1, or 2, so that a lost one costs no state. With "
               "node, all nodes hold them.",
       .range = {.least = 1, .most = 2},
       .in_plan = InPlan::kValue}};
}

}  // namespace

std::vector<Option> training_rows(Arguments& arguments) {
  TrainingOptions& training = arguments.job.training;
  const std::vector<Option> optimizer = {
      {.flag = "optimizer",
       .variable = variable(training.optimizer.kind, training::parse_optimizer),
       .help =
           absl::StrCat(training::optimizer_names(), ". muon: for matrices of hidden layers, and AdamW for the rest."),
       .in_plan = InPlan::kValue,
       .role = Role::kSetting},
      {.flag = "adamw_parameters",
       .variable = variable(training.optimizer.adamw_parameters),
       .help = "With muon: names of matrices, or of modules, that AdamW steps as well, such as an output layer.",
       .in_plan = InPlan::kValue,
       .role = Role::kSetting,
       .planned = [&training] {
         const auto& names = training.optimizer.adamw_parameters;
         return names.empty() ? json() : json(names);
       }}};
  return joined({batch_rows(arguments.job), optimizer, learning_rate_rows(training), step_rows(training)});
}

std::vector<Option> processor_rows(Arguments& arguments) {
  job::TrainJob& job = arguments.job;
  return {device_option(job.device),
          {.flag = "precision",
           .variable = variable(job.training.precision, training::parse_precision),
           .help = absl::StrCat("Precision of forward and backward passes: ", to_string(Precision::kFp32), ", ",
                                to_string(Precision::kBf16), " (autocast) or ", to_string(Precision::kFp16),
                                " (autocast, scaled loss). Parameters and gradients stay float32."),
           .in_plan = InPlan::kValue,
           .role = Role::kSetting},
          threads_option(job.threads)};
}

}  // namespace narrowcast::options
