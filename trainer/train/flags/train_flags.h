// Makes jobs from the command line of narrowcast-train. options/option_table.h has the flags, one row each. These files
// have the rules that concern several flags: exchange_flags.h for hooks and synchronisation, model_flags.h for new and
// trained models, train_flags.h for the rest.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <narrowcast/worker_env.h>
#include "trainer/base/program/description.h"
#include "trainer/train/flags/given_flags.h"
#include "trainer/train/options/arguments.h"
#include "trainer/train/options/job_options.h"

namespace narrowcast {

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

}  // namespace narrowcast
