// All options of narrowcast-train, one row each. The flags, the plan, the comparisons and the documentation are derived
// from the rows. A new option needs a member (in job_options.h or a struct in it, else in arguments.h) and a row.
#pragma once

#include <string>
#include <vector>

#include "trainer/base/program/command_line.h"
#include "trainer/train/options/arguments.h"
#include "trainer/train/options/option.h"

namespace narrowcast::options {

// In the order of --help.
std::vector<Group> all_groups();

// The rows of a group, in the order of --help. An option comes after the options on which its default depends. The
// rows set the members of `arguments`, which must outlive them.
std::vector<Option> options_of(Group group, Arguments& arguments);

// The rows of all groups.
std::vector<Option> all_options(Arguments& arguments);

// The names of a group's flags.
std::vector<std::string> flags_of(Group group);

// The names of a group's flags that a verification of gradients does not accept.
std::vector<std::string> unverified_flags_of(Group group);

// The flags of all options, and the groups of --help.
std::vector<program::Flag> all_flags(Arguments& arguments);
std::vector<program::FlagGroup> flag_groups();

// Throws as check_ranges does if a value of the job is out of its option's range.
void check_ranges_of(const job::TrainJob& job);

}  // namespace narrowcast::options
