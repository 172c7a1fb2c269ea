// What a job is going to do.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <narrowcast/consensus.h>
#include "trainer/train/job/train_job.h"

namespace narrowcast::job {

// The plan: a JSON object, the same on all ranks of a job that fits together. docs/training.md lists its keys.
nlohmann::json make_plan(const TrainJob& job, const JobInputs& inputs, int64_t world_size);

// The value of "data_hash" in a plan: 16 hexadecimal digits.
std::string hash_text(uint64_t hash);

// One "name  value" line per entry, for people.
std::string plan_text(const nlohmann::json& plan);

// One entry per key, for check_equal_on_all_ranks, which names the first that differs: the data come first, so that
// nothing that was counted in them is named in their place.
std::vector<NamedValue> plan_values(const nlohmann::json& plan);

}  // namespace narrowcast::job
