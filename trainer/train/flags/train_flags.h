// The command line of narrowcast-train: train_flags.cpp, its flags of the exchange in exchange_flags.cpp, those of
// checkpoints in checkpoint_flags.cpp, and those of models, new and trained ones, in model_flags.cpp. worker_flags.h
// has what it shares with other programs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <narrowcast/ddp_options.h>
#include <narrowcast/worker_env.h>
#include "models/model_table.h"
#include "trainer/base/program/command_line.h"
#include "trainer/train/inference/evaluation_job.h"
#include "trainer/train/job/train_job.h"

namespace narrowcast {

// What --help and --version say. docs/reference/training.md explains the flags at length.
program::Description train_description();

// The training or verification that the command line asks for; the environment says whether there are others to send
// to, and so which hook is the default. Throws c10::ValueError for a flag that cannot take
// effect with the others; values are checked where they are used.
job::TrainJob read_train_job(const program::CommandLine& line, const WorkerEnv& env);

// Trainings to be shown beside each other.
struct Comparison {
  std::vector<std::string> trainings;  // folders with a metrics.jsonl, or such files
  std::string report;                  // the page
};

// The comparison that the command line asks for; none without --compare. Throws as read_train_job does.
std::optional<Comparison> read_comparison(const program::CommandLine& line);

// The evaluation that the command line asks for; none without --evaluate. Throws as read_train_job does.
std::optional<inference::EvaluationJob> read_evaluation_job(const program::CommandLine& line);

// The names of the flags that say what model it is.
const std::vector<std::string>& model_flags();

// The row of --model. Throws c10::ValueError for an unknown name; where that is the path of a file, it says what the
// file is (files::describe_foreign_model).
const models::ModelRow& given_model();

// Refuses flags that have no effect with the model that is given. Throws c10::ValueError naming the flag, or for an
// unknown model.
void refuse_other_models_options(const program::CommandLine& line);

// What was given of the model's options: the model refuses those that it does not have.
models::ModelOptions read_model_options(const program::CommandLine& line);

// --vocabulary, if it is given.
std::optional<int64_t> given_vocabulary_size(const program::CommandLine& line);

// The names of the flags that mean something with --evaluate only, and its own.
const std::vector<std::string>& evaluation_flags();

// The names of the flags that say how gradients are exchanged.
const std::vector<std::string>& exchange_flags();

// Returns the names of those of them that only some hooks take.
const std::vector<std::string>& hook_option_flags();

// The names of the flags that only the power_sgd hooks take.
const std::vector<std::string>& power_sgd_flags();

// Refuses options of other hooks than this one, and those that have no effect with others that are given. Throws
// c10::ValueError naming the flag, or for an unknown hook.
void refuse_other_hooks_options(const program::CommandLine& line, const std::string& hook);

// The names of the flags of hooks that average in groups of ranks, and of what happens between those.
const std::vector<std::string>& local_flags();

// What they say of exchanges between groups, whose gradients are averaged as `ddp` says; none without --sync_every.
// Values are checked where they are used.
std::optional<OuterOptions> read_outer(const program::CommandLine& line, const DdpOptions& ddp);

// What exchange_flags() say of gradients, with that hook. Throws c10::ValueError for a format that is none, and
// for a size of buckets that is neither a number nor auto; the rest is checked where it is used.
DdpOptions read_ddp(const program::CommandLine& line, const std::string& hook);

// The flags of checkpoints. Throws c10::ValueError naming a flag that has no effect with the others; values are checked
// where they are used.
job::CheckpointOptions read_checkpoints(const program::CommandLine& line);

// Throws c10::ValueError naming `flag` if it was given without a value.
void check_folder(const program::CommandLine& line, const std::string& flag, const std::string& value);

// Throws c10::ValueError "--FLAG: has no effect REASON" if one of `flags` was given.
void refuse(const program::CommandLine& line, const std::vector<std::string>& flags, const std::string& reason);

// The same for every flag of the program but `used` and worker_flags().
void refuse_all_but(const program::CommandLine& line, const std::vector<std::string>& used, const std::string& reason);

}  // namespace narrowcast
