#include "trainer/train/options/option.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/error_message.h"

namespace narrowcast::options {
namespace {

using program::variable;

TEST(Range, ContainsFiniteValuesOnly) {
  EXPECT_TRUE(at_least(1).contains(1));
  EXPECT_FALSE(at_least(1).contains(0.5));
  EXPECT_FALSE(positive().contains(0));
  EXPECT_TRUE(positive().contains(1e-300));
  EXPECT_TRUE(share().contains(1));
  EXPECT_FALSE(share_below_one().contains(1));
  EXPECT_TRUE(share_below_one().contains(0));
  for (const double value : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_FALSE(at_least(0).contains(value)) << value;
  }
}

TEST(Range, IsTextForPeople) {
  EXPECT_EQ(at_least(1).text(), "at least 1");
  EXPECT_EQ(positive().text(), "positive");
  EXPECT_EQ(share().text(), "in 0..1");
  EXPECT_EQ(share_below_one().text(), "at least 0 and below 1");
  EXPECT_EQ((Range{.least = 2, .without_least = true}).text(), "above 2");
  EXPECT_EQ((Range{.least = 0, .most = 1, .without_least = true}).text(), "above 0 and at most 1");
  EXPECT_EQ((Range{.least = 0, .most = 1, .without_least = true, .without_most = true}).text(), "above 0 and below 1");
  EXPECT_EQ((Range{.most = 3}).text(), "at most 3");
  EXPECT_FALSE(Range().is_given());
}

TEST(CheckRanges, NamesTheFirstOptionAndItsValue) {
  int64_t steps = 1;
  double mix = 0.5;
  std::optional<int64_t> rank;
  const std::vector<Option> options = {{.flag = "steps", .variable = variable(steps), .help = "", .range = at_least(1)},
                                       {.flag = "mix", .variable = variable(mix), .help = "", .range = share()},
                                       {.flag = "rank", .variable = variable(rank), .help = "", .range = at_least(1)}};
  const auto complaint = [&] { return testing::error_message<c10::ValueError>([&] { check_ranges(options); }); };
  EXPECT_EQ(complaint(), "nothing was thrown") << "what has no value is in range";
  rank = 0;
  EXPECT_EQ(complaint(), "rank: must be at least 1, but is 0");
  mix = 1.5;
  EXPECT_EQ(complaint(), "mix: must be in 0..1, but is 1.5");
  steps = -3;
  EXPECT_EQ(complaint(), "steps: must be at least 1, but is -3");
}

TEST(PlannedValue, IsTheMembersUnlessTheRowSaysAnother) {
  int64_t every = 3;
  std::string folder;
  Option option = {.flag = "every", .variable = variable(every), .help = "", .in_plan = InPlan::kValue};
  EXPECT_EQ(planned_value(option), 3);
  option.planned = [&every] { return if_above_zero(every); };
  EXPECT_EQ(planned_value(option), 3);
  every = 0;
  EXPECT_TRUE(planned_value(option).is_null());
  const Option path = {.flag = "folder", .variable = variable(folder), .help = "", .in_plan = InPlan::kValue};
  EXPECT_TRUE(planned_value(path).is_null());
  folder = "x";
  EXPECT_EQ(planned_value(path), "x");
}

TEST(FlagOf, SaysUnitRangeDefaultAndRole) {
  int64_t steps = 600;
  Option option = {.flag = "steps",
                   .variable = variable(steps),
                   .help = "Steps.",
                   .unit = "steps",
                   .range = at_least(1),
                   .role = Role::kSetting};
  const program::Flag flag = resumable_flag_of(option);
  EXPECT_EQ(flag.values, "steps, at least 1");
  EXPECT_EQ(flag.default_value, "600");
  EXPECT_EQ(flag.at_resume, "must be the same");
  EXPECT_EQ(flag_of(option).at_resume, "");
  option.usual = "700";
  option.role = Role::kCircumstance;
  EXPECT_EQ(resumable_flag_of(option).default_value, "700");
  EXPECT_EQ(resumable_flag_of(option).at_resume, "may differ; bits change");
  option.resume_note = "free at the end";
  EXPECT_EQ(resumable_flag_of(option).at_resume, "free at the end");
}

}  // namespace
}  // namespace narrowcast::options
