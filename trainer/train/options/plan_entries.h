// The entries of a plan (job/plan.h): those that are options, and those that are computed.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <narrowcast/consensus.h>
#include "trainer/train/options/job_options.h"
#include "trainer/train/options/option.h"

namespace narrowcast::options {

// Adds the entries of the options with InPlan::kValue. A verification has those of Option::verified only.
void add_options(nlohmann::json& plan, const job::TrainJob& job);

// The role of the entry `name` of a plan. An entry that has no row is a setting, as are all options of a model. Which
// ranks share nodes is a circumstance in a plan with two levels of exchanges, and else free.
Role role_of_entry(const nlohmann::json& plan, const std::string& name);

// The names of all entries, and of the options that are parts of entries, each after those that it follows from: first
// those of the data, in which other entries are counted, then the groups of options, each with what is computed from
// it.
const std::vector<std::string>& entries_by_cause();

// What must be the same on all ranks, one value per entry, for check_equal_on_all_ranks, which names the first that
// differs: they are in the order of entries_by_cause. Entries that one rank alone cannot know, and the bytes sent, are
// left out: they follow from options, and those are to be named.
std::vector<NamedValue> compared_values(const nlohmann::json& plan);

}  // namespace narrowcast::options
