#include "trainer/base/program/description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>

#include "tests/support/error_message.h"
#include "tests/trainer/base/program/sample_program.h"

namespace narrowcast::program {
namespace {

using ::testing::HasSubstr;

TEST(Description, HelpShowsEachFlagInItsGroup) {
  const std::string help = help_text(sample_description());
  EXPECT_THAT(help, HasSubstr("sample: shows how a program is described\n\nUsage: sample [flags]\n"));
  EXPECT_THAT(help, HasSubstr("\nWork:\n  --sample_steps (integer; default: 10)\n      How many steps"));
  EXPECT_THAT(help, HasSubstr("\nInput:\n  --sample_data (text)\n      The file to read.\n"));
  EXPECT_THAT(help, HasSubstr("  --sample_dry_run (yes/no; default: false)\n"));
  EXPECT_THAT(help, HasSubstr("\nExamples:\n  # takes three steps\n  sample --sample_steps=3\n"));
  EXPECT_THAT(help, HasSubstr("\nExit codes:\n  0   success\n"));
  EXPECT_THAT(help, HasSubstr("\n  2   wrong use"));
}

TEST(Description, HelpFitsEightyColumns) {
  std::istringstream lines(help_text(sample_description()));
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 80U) << line;
  }
}

TEST(Description, NamesTypes) {
  const std::map<std::string, Flag> flags = with_abseil_flags({});
  EXPECT_EQ(flags.at("sample_steps").variable.type, "integer");
  EXPECT_EQ(flags.at("sample_rate").variable.type, "number");
  EXPECT_EQ(flags.at("sample_dry_run").variable.type, "yes/no");
  EXPECT_EQ(flags.at("sample_data").variable.type, "text");
  EXPECT_EQ(flags.at("sample_hooks").variable.type, "list");
  EXPECT_EQ(flags.at("sample_paths").variable.type, "list");
}

// The message with which check_flag_groups rejects these groups.
std::string fault(const std::vector<FlagGroup>& groups) {
  Description description;
  description.groups = groups;
  return testing::error_message<c10::Error>([&] { check_flag_groups(description); });
}

TEST(Description, EveryFlagIsInExactlyOneGroup) {
  std::vector<FlagGroup> groups = sample_description().groups;
  EXPECT_EQ(fault(groups), "nothing was thrown");
  groups[0].flags.push_back("sample_data");
  EXPECT_EQ(fault(groups), "--sample_data is in more than one group of the help text");
  groups[0].flags.back() = "sample_absent";
  EXPECT_EQ(fault(groups), "group Work names --sample_absent, which does not exist");
  groups[0].flags.pop_back();
  groups[1].flags.pop_back();
  EXPECT_EQ(fault(groups), "--sample_dry_run is in no group of the help text");
}

}  // namespace
}  // namespace narrowcast::program
