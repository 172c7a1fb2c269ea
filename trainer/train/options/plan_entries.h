// The entries of a plan (job/plan.h): options and computed entries.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <narrowcast/consensus.h>
#include "trainer/train/options/job_options.h"
#include "trainer/train/options/option.h"

namespace narrowcast::options {

// Adds the entries of the options with InPlan::kValue. A verification gets only entries with Option::verified.
void add_options(nlohmann::json& plan, const job::TrainJob& job);

// The role of the entry `name` of a plan. An entry without a row is a setting, as are all options of a model. The
// assignment of ranks to nodes is a circumstance in a hierarchical plan (two levels), else free.
Role role_of_entry(const nlohmann::json& plan, const std::string& name);

// The names of all entries, and of the options that are parts of entries. Each comes after the names from which it is
// derived. The data come first, because other entries are counted in their units. Then come the groups of options, each
// with the entries that are computed from it.
const std::vector<std::string>& entries_by_cause();

// The values that must be the same on all ranks, one per entry, for check_equal_on_all_ranks. It names the first value
// that differs, so they are in the order of entries_by_cause. Entries that one rank alone cannot know, and the bytes
// sent, are left out: they follow from options, and an error should name the option.
std::vector<NamedValue> compared_values(const nlohmann::json& plan);

}  // namespace narrowcast::options
