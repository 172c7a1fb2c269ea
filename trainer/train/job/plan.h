// What a job is going to do, and what its parts are given once all ranks agree on it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/worker_env.h>
#include "trainer/train/job/train_job.h"

namespace narrowcast::job {

// A JSON object, the same on all ranks of a job that fits together. docs/training.md lists its keys.
nlohmann::json make_plan(const TrainJob& job, const JobInputs& inputs, int64_t world_size);

// The value of "data_hash" in a plan: 16 hexadecimal digits.
std::string hash_text(uint64_t hash);

// One "name  value" line per entry, for people.
std::string plan_text(const nlohmann::json& plan);

// One entry per key, for check_equal_on_all_ranks, which names the first that differs: the data come first, so that
// nothing that was counted in them is named in their place.
std::vector<NamedValue> plan_values(const nlohmann::json& plan);

// Where a job writes and what it knows of its surroundings.
struct JobContext {
  WorkerEnv env;
  SessionEnv session;
  std::ostream& results;      // written on rank 0
  std::ostream& progress;     // written on rank 0
  bool progress_is_terminal;  // one updated line instead of plain ones
};

// A job that all ranks have agreed on.
struct AgreedJob {
  const TrainJob& job;
  const JobInputs& inputs;
  const nlohmann::json& plan;
  const ProcessGroupPtr& group;
  const JobContext& context;
};

}  // namespace narrowcast::job
