#include "trainer/launcher/job/recovery.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <set>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Ending kBySigkill{.signal = SIGKILL};
constexpr Ending kByWrongUse{.exit_code = 2};

TEST(ParseRecovery, ReadsTheFlag) {
  EXPECT_EQ(parse_recovery("--recovery", "auto"), Recovery::kAuto);
  EXPECT_EQ(parse_recovery("--recovery", "in_place"), Recovery::kInPlace);
  EXPECT_EQ(parse_recovery("--recovery", "restart"), Recovery::kRestart);
  EXPECT_EQ(testing::error_message<c10::ValueError>([] { parse_recovery("--recovery", "never"); }),
            "--recovery=never: must be auto, in_place or restart");
}

TEST(RecoversInPlace, ByDefaultOnlyOurTrainer) {
  const testing::TemporaryFolder own;
  const testing::TemporaryFolder other;
  const auto recovers = [&](Recovery wanted, const std::filesystem::path& program) {
    return recovers_in_place(wanted, 1, program, own.path());
  };
  EXPECT_TRUE(recovers(Recovery::kAuto, own / "narrowcast-train"));
  EXPECT_FALSE(recovers(Recovery::kAuto, own / "narrowcast-bench"));
  EXPECT_FALSE(recovers(Recovery::kAuto, other / "narrowcast-train"));
  EXPECT_TRUE(recovers(Recovery::kInPlace, other / "program"));
  EXPECT_FALSE(recovers(Recovery::kRestart, own / "narrowcast-train"));
  EXPECT_FALSE(recovers_in_place(Recovery::kAuto, 0, own / "narrowcast-train", own.path()));
}

// A group whose announcements arrive at a time that the test chooses.
class FakeGroup : public Rendezvous {
 public:
  Directive directive() override { return {.kind = kind}; }
  void rank_succeeded(const RankOfNode& /*rank*/) override {}
  void announce_start(const RankOfNode& rank) override { announced.push_back(rank.rank_on_node); }
  std::optional<int64_t> announced_start(const RankOfNode& rank) override {
    return announced.empty() || announced.back() != rank.rank_on_node ? std::nullopt : starts;
  }
  SilentRanks silent_ranks(const std::set<RankOfNode>& /*ranks*/) override { return silent; }
  void report(const NodeReport& /*report*/) override {}
  bool may_leave() override { return true; }

  Directive::Kind kind = Directive::Kind::kRun;
  std::vector<int64_t> announced;
  std::optional<int64_t> starts;
  SilentRanks silent;
};

class InPlaceRecoveryTest : public ::testing::Test {
 protected:
  InPlaceRecoveryTest() { recovery.begin_round(); }

  FailureRecord record_of(const WorkerFailure& failure) const {
    FailureRecord record;
    record.rank = failure.rank;
    record.pid = failure.pid;
    record.ending = failure.ending;
    record.is_final = is_final;
    return record;
  }
  bool replaces(int64_t rank, const Ending& ending) {
    return recovery.replaces({.rank = rank, .pid = static_cast<pid_t>(1000 + rank), .ending = ending});
  }
  // The report of a failure that ended the workers.
  NodeReport report_of(int64_t rank, const Ending& ending) const {
    NodeReport report{.end = NodeReport::End::kFailed, .failure = record_of({.rank = rank, .ending = ending})};
    recovery.complete(report);
    return report;
  }
  // A new process of that rank starts as the `number`th of the round.
  void starts(int64_t rank, int64_t number) {
    group.starts = number;
    EXPECT_EQ(recovery.replacement(rank).value().rank, rank);
  }

  bool is_final = false;
  int64_t first_rank = 0;  // of the node
  Clock::time_point now;
  FakeGroup group;
  std::vector<std::string> told;
  InPlaceRecovery recovery{
      group,
      {.max_restarts = 2,
       .present = [this](int64_t rank) { return rank + first_rank; },
       .place = [](int64_t rank) { return RankOfNode{.node = 5, .rank_on_node = rank}; },
       .record = [this](const WorkerFailure& failure) { return record_of(failure); },
       .command = [](int64_t rank,
                     int64_t number) { return WorkerCommand{.rank = rank, .arguments = {std::to_string(number)}}; },
       .now = [this] { return now; },
       .tell = [this](const std::string& line) { told.push_back(line); }}};
};

TEST_F(InPlaceRecoveryTest, AnnouncesTheStartBeforeItAllowsIt) {
  EXPECT_TRUE(replaces(1, kBySigkill));
  EXPECT_THAT(group.announced, ElementsAre(1));
  EXPECT_FALSE(recovery.replacement(1));
  group.starts = 7;
  EXPECT_THAT(recovery.replacement(1).value().arguments, ElementsAre("7"));
  EXPECT_THAT(told, ElementsAre("rank 1 (pid 1001) was ended by SIGKILL; a new process takes its place (1 of "
                                "--max_restarts=2 within an hour)"));
}

// A start on a node that has not met the others does not count. Processes have different numbers nevertheless.
TEST_F(InPlaceRecoveryTest, NumbersProcessesThatAreNoStarts) {
  group.starts = 0;
  for (const char* const number : {"1", "2"}) {
    EXPECT_TRUE(replaces(1, kBySigkill));
    EXPECT_THAT(recovery.replacement(1).value().arguments, ElementsAre(number));
  }
}

TEST_F(InPlaceRecoveryTest, ReplacesSeveralRanksForOneFailure) {
  EXPECT_TRUE(replaces(1, kBySigkill));
  EXPECT_TRUE(replaces(0, {.exit_code = 5}));
  EXPECT_EQ(told.at(1),
            "rank 0 (pid 1000) ended with exit code 5; a new process takes its place (1 of --max_restarts=2 within an "
            "hour)")
      << "it is the same failure";
}

// After a time-out, a new process would wait for the rank that hangs.
TEST_F(InPlaceRecoveryTest, LeavesARankThatCannotRecoverToTheGroup) {
  EXPECT_FALSE(replaces(0, {.exit_code = 3}));
  EXPECT_TRUE(group.announced.empty());
  EXPECT_FALSE(report_of(0, {.exit_code = 3}).used_up) << "all ranks may start again";
}

TEST_F(InPlaceRecoveryTest, EndsTheJobWhenTheLimitIsReached) {
  EXPECT_TRUE(replaces(1, kBySigkill));
  EXPECT_TRUE(replaces(1, kBySigkill));
  EXPECT_FALSE(replaces(1, kBySigkill));
  EXPECT_THAT(group.announced, ElementsAre(1, 1));
  const NodeReport report = report_of(1, kBySigkill);
  EXPECT_TRUE(report.used_up);
  EXPECT_FALSE(report.before);
  EXPECT_TRUE(report_of(0, kBySigkill).used_up) << "even if another rank is blamed then";
}

TEST_F(InPlaceRecoveryTest, CountsOnlyTheLastHourInAllRounds) {
  EXPECT_TRUE(replaces(1, kBySigkill));
  now += std::chrono::minutes(30);
  EXPECT_TRUE(replaces(1, kBySigkill));
  recovery.begin_round();
  EXPECT_FALSE(replaces(1, kBySigkill));
  now += std::chrono::minutes(30);
  EXPECT_TRUE(replaces(1, kBySigkill));
}

TEST_F(InPlaceRecoveryTest, DoesNotReplaceWhatWouldFailAlike) {
  EXPECT_TRUE(replaces(1, kBySigkill));
  is_final = true;
  EXPECT_FALSE(replaces(1, {.exit_code = 1}));
  const NodeReport report = report_of(1, {.exit_code = 1});
  EXPECT_FALSE(report.used_up);
  EXPECT_TRUE(report.failure->is_final);
  EXPECT_EQ(report.before->ending.signal, SIGKILL);
}

TEST_F(InPlaceRecoveryTest, DoesNotReplaceTheSameWrongUseTwice) {
  EXPECT_TRUE(replaces(1, kByWrongUse));
  EXPECT_TRUE(replaces(0, kByWrongUse)) << "the first time of this rank";
  EXPECT_FALSE(replaces(1, kByWrongUse));
  const NodeReport report = report_of(1, kByWrongUse);
  EXPECT_TRUE(report.failure->is_final);
  EXPECT_FALSE(report.used_up);
}

TEST_F(InPlaceRecoveryTest, LeavesTheRestToTheGroup) {
  recovery.rank_succeeded();
  EXPECT_FALSE(replaces(1, kBySigkill)) << "the others cannot meet without a rank that is gone";
  EXPECT_FALSE(report_of(1, kBySigkill).used_up);
  recovery.begin_round();
  group.kind = Directive::Kind::kStop;
  EXPECT_FALSE(replaces(1, kBySigkill));
  EXPECT_FALSE(report_of(1, kBySigkill).used_up);
  group.kind = Directive::Kind::kRun;
  EXPECT_TRUE(replaces(1, kBySigkill));
}

TEST_F(InPlaceRecoveryTest, FindsEachHangingProcessOnce) {
  EXPECT_THAT(recovery.hanging({0, 1}), IsEmpty());
  group.silent = {{{5, 1}, 0}};
  EXPECT_THAT(recovery.hanging({0, 1}), ElementsAre(1));
  EXPECT_THAT(told, ElementsAre("rank 1 is silent for other ranks: it is killed"));
  EXPECT_THAT(recovery.hanging({0, 1}), IsEmpty());
  EXPECT_THAT(recovery.hanging({0}), IsEmpty());
}

TEST_F(InPlaceRecoveryTest, TellsOfRanksByTheirPresentNumbers) {
  first_rank = 4;
  group.silent = {{{4, 0}, 0}, {{5, 1}, 0}};
  EXPECT_THAT(recovery.hanging({0, 1}), ElementsAre(1));
  EXPECT_THAT(told, ElementsAre(HasSubstr("rank 5 is silent")));
}

TEST_F(InPlaceRecoveryTest, IgnoresReportsAboutAnEarlierProcess) {
  EXPECT_TRUE(replaces(1, kBySigkill));
  starts(1, 3);
  group.silent = {{{5, 1}, 2}};
  EXPECT_THAT(recovery.hanging({0, 1}), IsEmpty());
  group.silent = {{{5, 1}, 3}};
  EXPECT_THAT(recovery.hanging({0, 1}), ElementsAre(1));
  EXPECT_TRUE(replaces(1, kBySigkill));
  starts(1, 4);
  EXPECT_THAT(recovery.hanging({0, 1}), IsEmpty());
  group.silent = {{{5, 1}, 4}};
  EXPECT_THAT(recovery.hanging({0, 1}), ElementsAre(1)) << "the next process, too";
}

}  // namespace
}  // namespace narrowcast::launcher
