// An example program with one flag of each kind, for the tests of trainer/base/program.
#pragma once

#include <absl/flags/declare.h>
#include <absl/flags/flag.h>

#include <string>
#include <vector>

#include "trainer/base/program/command_line.h"
#include "trainer/base/program/path_list.h"

ABSL_DECLARE_FLAG(int32_t, sample_steps);
ABSL_DECLARE_FLAG(double, sample_rate);
ABSL_DECLARE_FLAG(bool, sample_dry_run);
ABSL_DECLARE_FLAG(std::string, sample_data);
ABSL_DECLARE_FLAG(std::vector<std::string>, sample_hooks);
ABSL_DECLARE_FLAG(narrowcast::program::PathList, sample_paths);

namespace narrowcast::program {

Description sample_description();

}  // namespace narrowcast::program
