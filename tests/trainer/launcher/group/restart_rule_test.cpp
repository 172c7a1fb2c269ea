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

  RestartRule rule = RestartRule::for_rounds(3);
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

TEST_F(RestartRuleTest, AnEarlierFailureOfTheRoundIsReportedBeforeThoseOfEarlierRounds) {
  EXPECT_TRUE(allows(failure(kKilled)));
  FailureRecord record = failure({.exit_code = 1});
  record.is_final = true;
  end = {.cause = GroupEnd::Cause::kFailed, .failure = record, .before = failure({.signal = SIGSEGV})};
  EXPECT_FALSE(rule.allows(end));
  EXPECT_EQ(end.exit_code(), 128 + SIGSEGV);
}

// The rule for processes that take another's place, with a clock that the test sets.
class RestartInPlaceTest : public RestartRuleTest {
 protected:
  RestartInPlaceTest() { rule = RestartRule::in_place(2); }

  bool allows_at(std::chrono::minutes time, const FailureRecord& record) {
    end = {.cause = GroupEnd::Cause::kFailed, .failure = record};
    return rule.allows(end, Clock::time_point(time));
  }
  static FailureRecord failure_of(int64_t rank, const Ending& ending) {
    FailureRecord record = failure(ending);
    record.rank = rank;
    return record;
  }
};

TEST_F(RestartInPlaceTest, AllowsAsManyWithinAnyHour) {
  using std::chrono::minutes;
  EXPECT_TRUE(allows_at(minutes(0), failure(kKilled)));
  EXPECT_TRUE(allows_at(minutes(40), failure(kKilled)));
  EXPECT_EQ(rule.restarts(), 2);
  EXPECT_FALSE(allows_at(minutes(59), failure(kKilled)));
  EXPECT_EQ(end.text, "");
  EXPECT_FALSE(end.failure->is_final);
  EXPECT_TRUE(allows_at(minutes(60), failure(kKilled)));
  EXPECT_EQ(rule.restarts(), 2);
  EXPECT_FALSE(allows_at(minutes(99), failure(kKilled)));
  EXPECT_TRUE(allows_at(minutes(200), failure(kKilled)));
  EXPECT_EQ(rule.restarts(), 1);
}

TEST_F(RestartInPlaceTest, CountsFailuresOfSeveralRanksTogetherAsOne) {
  const auto allows_after = [&](std::chrono::seconds time, int64_t rank) {
    end = {.cause = GroupEnd::Cause::kFailed, .failure = failure_of(rank, kKilled)};
    return rule.allows(end, Clock::time_point(time));
  };
  using std::chrono::seconds;
  EXPECT_TRUE(allows_after(seconds(0), 0));
  EXPECT_TRUE(allows_after(seconds(0), 1));
  EXPECT_TRUE(allows_after(seconds(9), 2));
  EXPECT_EQ(rule.restarts(), 1);
  EXPECT_TRUE(allows_after(seconds(9), 1)) << "the second time";
  EXPECT_EQ(rule.restarts(), 2);
  EXPECT_TRUE(allows_after(seconds(18), 0));
  EXPECT_EQ(rule.restarts(), 2);
  EXPECT_FALSE(allows_after(seconds(18), 0));
  EXPECT_FALSE(allows_after(seconds(19), 3)) << "too late";
}

TEST_F(RestartInPlaceTest, ComparesAnErrorWithTheSameRanksLast) {
  using std::chrono::minutes;
  EXPECT_TRUE(allows_at(minutes(0), failure_of(0, kWrongUse)));
  EXPECT_TRUE(allows_at(minutes(0), failure_of(1, kWrongUse)));
  EXPECT_FALSE(allows_at(minutes(1), failure_of(0, kWrongUse)));
  EXPECT_TRUE(end.failure->is_final);
}

TEST_F(RestartInPlaceTest, AnErrorLongAfterTheSameOneIsNoRepetition) {
  using std::chrono::minutes;
  EXPECT_TRUE(allows_at(minutes(0), failure_of(0, kWrongUse)));
  EXPECT_TRUE(allows_at(minutes(2), failure_of(0, kWrongUse)));
  EXPECT_FALSE(end.failure->is_final);
  EXPECT_FALSE(allows_at(minutes(3), failure_of(0, kWrongUse)));
  EXPECT_TRUE(end.failure->is_final) << "the last one counts, not the first";
}

TEST_F(RestartInPlaceTest, ForgetsACauseThatIsLongPast) {
  using std::chrono::minutes;
  FailureRecord final = failure({.exit_code = 1});
  final.is_final = true;
  EXPECT_TRUE(allows_at(minutes(0), failure(kKilled)));
  EXPECT_FALSE(allows_at(minutes(59), final));
  EXPECT_EQ(end.before->ending.signal, SIGKILL);
  EXPECT_FALSE(allows_at(minutes(60), final));
  EXPECT_FALSE(end.before);
}

}  // namespace
}  // namespace narrowcast::launcher
