// The command line of narrowcast-train: which jobs it asks for. options/option_table.h has the flags, one row each.
// Here are the rules that are about several of them: in train_flags.cpp, in exchange_flags.cpp those of the exchange,
// and in model_flags.cpp those of models, new and trained ones.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <narrowcast/ddp_options.h>
#include <narrowcast/outer_options.h>
#include <narrowcast/worker_env.h>
#include "models/model_table.h"
#include "trainer/base/program/command_line.h"
#include "trainer/train/inference/evaluation_job.h"
#include "trainer/train/options/arguments.h"
#include "trainer/train/options/job_options.h"

namespace narrowcast {

// A command line that has been read.
struct Given {
  const program::CommandLine& line;     // says which flags were given
  const options::Arguments& arguments;  // holds their values

  bool has(const std::string& flag) const { return line.given(flag); }
};

// What --help and --version say. The flags set the members of `arguments`, which must outlive the description.
// docs/reference/training.md explains the flags at length, docs/reference/flags.md lists them.
program::Description train_description(options::Arguments& arguments);

// The training or verification that the command line asks for; the environment says whether there are others to send
// to, and so which hook is the default. Throws c10::ValueError for a flag that cannot take
// effect with the others; values are checked where they are used.
job::TrainJob read_train_job(const Given& given, const WorkerEnv& env);

// Trainings to be shown beside each other.
struct Comparison {
  std::vector<std::string> trainings;  // folders with a metrics.jsonl, or such files
  std::string report;                  // the page
};

// The comparison that the command line asks for; none without --compare. Throws as read_train_job does.
std::optional<Comparison> read_comparison(const Given& given);

// The evaluation that the command line asks for; none without --evaluate. Throws as read_train_job does.
std::optional<inference::EvaluationJob> read_evaluation_job(const Given& given);

// The row of --model. Throws c10::ValueError for an unknown name; where that is the path of a file, it says what the
// file is (files::describe_foreign_model).
const models::ModelRow& given_model(const Given& given);

// Refuses flags that have no effect with the model that is given. Throws c10::ValueError naming the flag, or for an
// unknown model.
void refuse_other_models_options(const Given& given);

// What was given of the model's options: the model refuses those that it does not have.
models::ModelOptions read_model_options(const Given& given);

// The names of the flags of hooks that average in groups of ranks, and of what happens between those; and of all hooks'
// options.
std::vector<std::string> local_flags();
std::vector<std::string> hook_flags();

// Refuses options of other hooks than this one, and those that have no effect with others that are given. Throws
// c10::ValueError naming the flag, or for an unknown hook.
void refuse_other_hooks_options(const Given& given, const std::string& hook);

// What is given of exchanges of gradients, with that hook; values are checked where they are used.
DdpOptions read_ddp(const Given& given, const std::string& hook);

// What is given of exchanges between groups; none without --sync_every. Values are checked where they are used.
std::optional<OuterOptions> read_outer(const Given& given);

// Throws c10::ValueError "--FLAG: has no effect REASON" if one of `flags` was given.
void refuse(const Given& given, const std::vector<std::string>& flags, const std::string& reason);

// The same for every flag of the program but `used` and those of the place in the job.
void refuse_all_but(const Given& given, const std::vector<std::string>& used, const std::string& reason);

}  // namespace narrowcast
