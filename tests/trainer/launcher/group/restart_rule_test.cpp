#include "trainer/launcher/group/restart_rule.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

namespace narrowcast::launcher {
namespace {

FailureRecord failure(const Ending& ending, const std::vector<std::string>& last_lines = {}) {
  FailureRecord record;
  record.ending = ending;
  record.last_lines = last_lines;
  return record;
}

constexpr Ending kWrongUse{.exit_code = 2};
constexpr Ending kKilled{.signal = SIGKILL};

class RestartRuleTest : public ::testing::Test {
 protected:
  bool allows(const FailureRecord& record) {
    end = {.cause = GroupEnd::Cause::kFailed, .failure = record};
    return rule.allows(end);
  }

  RestartRule rule{3};
  GroupEnd end;
};

TEST_F(RestartRuleTest, AllowsAsManyAsWereAskedFor) {
  for (int restart = 0; restart < 3; ++restart) EXPECT_TRUE(allows(failure(kKilled))) << restart;
  EXPECT_FALSE(allows(failure(kKilled)));
  EXPECT_EQ(end.text, "") << "all were used";
  EXPECT_FALSE(end.before.has_value());
  EXPECT_EQ(end.exit_code(), 128 + SIGKILL);
}

TEST_F(RestartRuleTest, AllowsNoneAfterAFailureThatIsFinal) {
  for (const int code : {1, 2}) {
    FailureRecord record = failure({.exit_code = code});
    record.is_final = true;
    EXPECT_FALSE(allows(record));
    EXPECT_EQ(end.text, "not restarted, because it would fail in the same way");
    EXPECT_EQ(end.exit_code(), code);
  }
}

TEST_F(RestartRuleTest, AProgramThatSaysNothingHasTwoTriesWithTheSameError) {
  EXPECT_TRUE(allows(failure(kWrongUse, {"train.py: error: 07:15:01 unknown flag"})));
  EXPECT_FALSE(allows(failure(kWrongUse, {"train.py: error: 07:15:32 unknown flag"})));
  EXPECT_EQ(end.exit_code(), 2);
  EXPECT_FALSE(end.before.has_value());
}

TEST_F(RestartRuleTest, OtherErrorsAndCodesAreNoRepetition) {
  EXPECT_TRUE(allows(failure(kWrongUse, {"no file"})));
  EXPECT_TRUE(allows(failure(kWrongUse, {"no memory"})));
  EXPECT_TRUE(allows(failure({.exit_code = 7}, {"no memory"})));
  EXPECT_FALSE(allows(failure({.exit_code = 7}, {"no memory"}))) << "they are used up";
}

TEST_F(RestartRuleTest, TheFailureThatARestartWasToMendIsTheOneToReport) {
  EXPECT_TRUE(allows(failure(kKilled)));
  EXPECT_TRUE(allows(failure(kWrongUse, {"exists already"})));
  EXPECT_FALSE(allows(failure(kWrongUse, {"exists already"})));
  EXPECT_EQ(end.failure->ending.exit_code, 2);
  EXPECT_EQ(end.before->ending.signal, SIGKILL);
  EXPECT_EQ(end.exit_code(), 128 + SIGKILL);
}

}  // namespace
}  // namespace narrowcast::launcher
