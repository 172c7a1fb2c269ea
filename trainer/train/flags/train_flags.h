// Makes jobs from the command line of narrowcast-train. options/option_table.h has the flags, one row each. These files
// have the rules that concern several flags: exchange_flags.cpp for hooks and synchronisation, model_flags.cpp for new
// and trained models, train_flags.cpp for the rest.
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
  const program::CommandLine& line;     // for which flags were given
  const options::Arguments& arguments;  // the flags' values

  bool has(const std::string& flag) const { return line.given(flag); }
};

// The description for --help and --version. The flags set the members of `arguments`, which must outlive the
// description. docs/reference/training.md explains the flags, docs/reference/flags.md lists them.
program::Description train_description(options::Arguments& arguments);

// The training or verification that the command line requests. The environment determines the default hook: it
// contains whether there are or may be other ranks. Throws c10::ValueError for a flag that has no effect with the other
// flags. Values are checked where they are used.
job::TrainJob read_train_job(const Given& given, const WorkerEnv& env);

// Trainings to compare in one report.
struct Comparison {
  std::vector<std::string> trainings;  // folders with a metrics.jsonl, or such files
  std::string report;                  // the page
};

// The comparison that the command line requests; empty without --compare. Throws as read_train_job does.
std::optional<Comparison> read_comparison(const Given& given);

// The evaluation that the command line requests; empty without --evaluate. Throws as read_train_job does.
std::optional<inference::EvaluationJob> read_evaluation_job(const Given& given);

// The row of --model. Throws c10::ValueError for an unknown name. If the name is the path of a file, the message
// describes the file (files::describe_foreign_model).
const models::ModelRow& given_model(const Given& given);

// Throws c10::ValueError naming the flag if a flag was given that has no effect with the given model, or for an unknown
// model.
void refuse_other_models_options(const Given& given);

// The model options that were given. The model rejects an option that it does not have.
models::ModelOptions read_model_options(const Given& given);

// The flags of local averaging: options of hooks that average in groups of ranks, and of the synchronisation between
// these groups. hook_flags() has the flags of all hooks' options.
std::vector<std::string> local_flags();
std::vector<std::string> hook_flags();

// Throws c10::ValueError naming the flag if an option was given that this hook does not have, or that has no effect
// with the other given options, or if the hook is unknown.
void refuse_other_hooks_options(const Given& given, const std::string& hook);

// The options of gradient exchange with that hook. Values are checked where they are used.
DdpOptions read_ddp(const Given& given, const std::string& hook);

// The options of synchronisation between groups; empty without --sync_every. Values are checked where they are used.
std::optional<OuterOptions> read_outer(const Given& given);

// Throws c10::ValueError "--FLAG: has no effect REASON" if one of `flags` was given.
void refuse(const Given& given, const std::vector<std::string>& flags, const std::string& reason);

// The same for every flag of the program except `used` and the flags of the place in the job.
void refuse_all_but(const Given& given, const std::vector<std::string>& used, const std::string& reason);

}  // namespace narrowcast
