#include "tests/trainer/base/program/sample_program.h"

ABSL_FLAG(int32_t, sample_steps, 10, "How many steps to take before the program ends, which is a long story to tell.");
ABSL_FLAG(double, sample_rate, 0.5, "The rate.");
ABSL_FLAG(bool, sample_dry_run, false, "Only says what it would do.");
ABSL_FLAG(std::string, sample_data, "", "The file to read.");
ABSL_FLAG(std::vector<std::string>, sample_hooks, {}, "Names, with commas between.");
ABSL_FLAG(narrowcast::program::PathList, sample_paths, {}, "Files, with commas between.");

namespace narrowcast::program {

Description sample_description() {
  Description description;
  description.name = "sample";
  description.version = "1.2.3";
  description.summary = "shows how a program is described";
  description.usage = "sample [flags]";
  description.groups = {{"Work", {"sample_steps", "sample_rate", "sample_hooks"}},
                        {"Input", {"sample_data", "sample_paths", "sample_dry_run"}}};
  description.examples = {{"takes three steps", "sample --sample_steps=3"}};
  description.exit_codes = common_exit_codes();
  return description;
}

}  // namespace narrowcast::program
