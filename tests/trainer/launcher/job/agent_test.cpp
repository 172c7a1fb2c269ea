#include "trainer/launcher/job/agent.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/launcher/job/fake_runner.h"
#include "trainer/launcher/job/job_rendezvous.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// A group with scripted directives that records the agent's reports.
class FakeRendezvous : public Rendezvous {
 public:
  explicit FakeRendezvous(const WorkerRunner& runner) : runner_(runner) {}

  // Sets the directive from time `at` on.
  void says(milliseconds at, const Directive& directive) { script_.insert_or_assign(Clock::time_point(at), directive); }

  Directive directive() override {
    const auto next = script_.upper_bound(runner_.now());
    return next == script_.begin() ? Directive{} : std::prev(next)->second;
  }
  void rank_succeeded(const RankOfNode& rank) override { succeeded.push_back(rank); }
  void announce_start(const RankOfNode& rank) override { started.push_back(rank.rank_on_node); }
  std::optional<int64_t> announced_start(const RankOfNode& /*rank*/) override {
    return runner_.now() >= announced_at ? std::optional<int64_t>(std::ssize(started)) : std::nullopt;
  }
  SilentRanks silent_ranks(const std::set<RankOfNode>& /*ranks*/) override { return silent; }
  void report(const NodeReport& report) override { reports.push_back(report); }
  bool may_leave() override { return runner_.now() >= may_leave_at; }

  std::vector<RankOfNode> succeeded;
  std::vector<int64_t> started;    // announced
  Clock::time_point announced_at;  // announcements arrive no earlier
  SilentRanks silent;
  std::vector<NodeReport> reports;
  Clock::time_point may_leave_at;

 private:
  const WorkerRunner& runner_;
  std::map<Clock::time_point, Directive> script_;
};

class AgentTest : public ::testing::Test {
 protected:
  AgentOptions options(int64_t nproc) {
    AgentOptions wanted;
    wanted.launch.command = {"/bin/train"};
    wanted.launch.nproc_per_node = nproc;
    wanted.launch.output.run_folder = "/no/such/run";
    wanted.shutdown_timeout = SupervisorOptions().shutdown_timeout;
    wanted.signal_timeout = SupervisorOptions().signal_timeout;
    wanted.monitor_interval = SupervisorOptions().monitor_interval;
    wanted.tell = [this](const std::string& line) { told.push_back(line); };
    wanted.wall_clock = [] { return std::chrono::system_clock::time_point(std::chrono::hours(500000)); };
    return wanted;
  }
  GroupEnd run(Rendezvous& rendezvous, const AgentOptions& wanted) { return Agent(runner, rendezvous, wanted).run(); }

  static Directive run_directive(int64_t restart_count = 0) {
    Directive directive{.kind = Directive::Kind::kRun};
    directive.round.restart_count = restart_count;
    return directive;
  }
  static Directive over(GroupEnd::Cause cause) {
    return {.kind = Directive::Kind::kOver, .end = GroupEnd{.cause = cause, .text = "why", .code = 3}};
  }

  FakeRunner runner;
  FakeRendezvous group{runner};
  std::vector<std::string> told;
};

// An event at a given time, for which the agent waits in the runner's time.
std::function<bool(milliseconds)> comes_at(FakeRunner& runner, milliseconds time) {
  return [&runner, time](milliseconds patience) {
    runner.pass(patience);
    return runner.now().time_since_epoch() >= time;
  };
}

TEST_F(AgentTest, ASignalEndsWhateverItWaitsFor) {
  runner.user_sends(SIGTERM, milliseconds(500));
  EXPECT_EQ(wait_unless_interrupted(runner, comes_at(runner, milliseconds(300))), 0);
  EXPECT_EQ(wait_unless_interrupted(runner, comes_at(runner, milliseconds(300'000))), SIGTERM);
  EXPECT_LT(runner.now().time_since_epoch(), milliseconds(600));
}

TEST_F(AgentTest, RunsAJobAlone) {
  LocalRendezvous alone({.world_size = 2});
  runner.ends(0, milliseconds(10), {});
  runner.ends(1, milliseconds(20), {});
  EXPECT_EQ(run(alone, options(2)).exit_code(), 0);
  EXPECT_THAT(told, IsEmpty());
}

TEST_F(AgentTest, RestartsAllWorkersTogether) {
  LocalRendezvous alone({.world_size = 2, .max_restarts = 3});
  runner.ends(1, milliseconds(10), {.exit_code = 7});
  EXPECT_EQ(runner.refused_rank, -1);
  runner.ends(0, milliseconds(500), {});
  runner.ends(1, milliseconds(600), {});
  EXPECT_EQ(run(alone, options(2)).exit_code(), 0);
  EXPECT_THAT(runner.log, ElementsAre("start 0", "start 1", "send SIGTERM at 10", "send SIGTERM at 10", "start 0",
                                      "start 1", "send SIGTERM at 600"));
  EXPECT_THAT(told[0], HasSubstr("rank 1 (pid 1001) failed first: exit code 7, 0.0 s after the start"));
  EXPECT_THAT(told, Contains("    last line of 1"));
  EXPECT_EQ(told.back(), "restart 1 (--max_restarts=3): 2 ranks");
}

TEST_F(AgentTest, EndsWithTheFailureWhenNoRestartIsLeft) {
  LocalRendezvous alone({.max_restarts = 1});
  runner.ends(0, milliseconds(10), {.exit_code = 7});
  runner.ends(0, milliseconds(20), {.exit_code = 8});
  EXPECT_EQ(run(alone, options(1)).exit_code(), 8);
  EXPECT_THAT(told.back(), "    last line of 0");
}

// At a SIGTERM its ranks would ask the others to stop.
TEST_F(AgentTest, KillsWorkersWhoseNodeWasRemovedWhileTheOthersGoOn) {
  for (const bool in_place : {true, false}) {
    FakeRunner own;
    FakeRendezvous job(own);
    Directive runs = run_directive();
    runs.round.max_restarts = 1;
    job.says(milliseconds(0), runs);
    job.says(milliseconds(1000), over(GroupEnd::Cause::kAborted));
    AgentOptions wanted = options(1);
    wanted.launch.in_place = in_place;
    Agent(own, job, wanted).run();
    EXPECT_THAT(own.log.at(1), HasSubstr(in_place ? "send SIGKILL" : "send SIGTERM"));
  }
}

// Otherwise the group would wait for its report for ever.
TEST_F(AgentTest, ReportsARoundThatEndedBeforeItsWorkersCouldStart) {
  group.says(milliseconds(0), {.kind = Directive::Kind::kStop, .awaits_report = true});
  group.says(milliseconds(150), {.kind = Directive::Kind::kStop});
  group.says(milliseconds(400), over(GroupEnd::Cause::kSucceeded));
  run(group, options(2));
  EXPECT_THAT(runner.log, IsEmpty());
  EXPECT_EQ(group.reports.at(0).end, NodeReport::End::kStopped);
}

TEST_F(AgentTest, WorkersLiveOnWhenTheNodesChangeInPlace) {
  Directive first = run_directive();
  first.round.first_rank = 4;
  first.round.node = 3;
  Directive changed = run_directive();
  changed.round = {
      .nodes = 2, .first_rank = 2, .world_size = 4, .node = 3, .changes = 1, .change = "node 0 (a) was lost"};
  group.says(milliseconds(0), first);
  group.says(milliseconds(1000), changed);
  group.says(milliseconds(2005), over(GroupEnd::Cause::kSucceeded));
  runner.ends(4, milliseconds(2000), {});
  runner.ends(5, milliseconds(2010), {});
  AgentOptions in_place = options(2);
  in_place.launch.in_place = true;
  EXPECT_EQ(run(group, in_place).exit_code(), 0);
  EXPECT_THAT(runner.log, ElementsAre("start 4", "start 5", "send SIGTERM at 2010"));
  EXPECT_THAT(group.succeeded, ElementsAre(RankOfNode{3, 0}, RankOfNode{3, 1}));
  EXPECT_THAT(told, Contains("node 0 (a) was lost: goes on with 4 ranks on 2 nodes"));
}

// Ranks that do not recover in place know no nodes.
TEST_F(AgentTest, TellsTheNumberInTheJobOfARankThatHasEnded) {
  Directive runs = run_directive();
  runs.round.first_rank = 4;
  runs.round.node = 3;
  group.says(milliseconds(0), runs);
  group.says(milliseconds(2005), over(GroupEnd::Cause::kSucceeded));
  runner.ends(4, milliseconds(2000), {});
  runner.ends(5, milliseconds(2000), {});
  EXPECT_EQ(run(group, options(2)).exit_code(), 0);
  EXPECT_THAT(group.succeeded, ElementsAre(RankOfNode{0, 4}, RankOfNode{0, 5}));
}

TEST_F(AgentTest, WaitsForTheRoundAndTellsWhatFor) {
  group.says(milliseconds(0), {.kind = Directive::Kind::kWait, .note = "waiting for node 1"});
  group.says(milliseconds(250), run_directive());
  group.says(milliseconds(900), over(GroupEnd::Cause::kSucceeded));
  runner.ends(0, milliseconds(800), {});
  EXPECT_EQ(run(group, options(1)).exit_code(), 0);
  EXPECT_THAT(told, ElementsAre("waiting for node 1"));
  EXPECT_EQ(group.reports.at(0).end, NodeReport::End::kSucceeded);
  EXPECT_THAT(group.succeeded, ElementsAre(RankOfNode{0, 0}));
}

TEST_F(AgentTest, StopsWhenTheGroupWantsIt) {
  group.says(milliseconds(0), run_directive());
  group.says(milliseconds(250), {.kind = Directive::Kind::kStop});
  group.says(milliseconds(1000), over(GroupEnd::Cause::kAborted));
  EXPECT_EQ(run(group, options(2)).exit_code(), 3);
  EXPECT_THAT(runner.log, Contains("send SIGTERM at 300"));
  EXPECT_EQ(group.reports.at(0).end, NodeReport::End::kStopped);
  EXPECT_EQ(group.reports.at(0).stopped_ranks, 2);
  EXPECT_THAT(told, ElementsAre("why"));
}

TEST_F(AgentTest, ReportsTheFirstFailureOfItsNode) {
  Directive directive = run_directive();
  directive.round.first_rank = 4;
  group.says(milliseconds(0), directive);
  group.says(milliseconds(200), over(GroupEnd::Cause::kAborted));
  runner.ends(5, milliseconds(50), {.exit_code = 7});
  run(group, options(2));
  const FailureRecord& failure = group.reports.at(0).failure.value();
  EXPECT_EQ(failure.rank, 5);
  EXPECT_EQ(failure.after, milliseconds(50));
  EXPECT_EQ(failure.time_ms, int64_t{500000} * 3600 * 1000 + 50);
  EXPECT_THAT(failure.last_lines, ElementsAre("last line of 5"));
}

TEST_F(AgentTest, ReportsNoMoreThanTheGroupsStoreTakes) {
  group.says(milliseconds(0), run_directive());
  group.says(milliseconds(200), over(GroupEnd::Cause::kAborted));
  runner.ends(0, milliseconds(50), {.exit_code = 7});
  runner.last_line.resize(size_t{1} << 20, 'x');
  run(group, options(1));
  EXPECT_THAT(group.reports.at(0).failure->last_lines, ElementsAre(EndsWith("xxx ... (1044520 more bytes)")));
}

TEST_F(AgentTest, TellsTheGroupOfASignalWhileItWaits) {
  runner.user_sends(SIGINT, milliseconds(50));
  runner.user_sends(SIGINT, milliseconds(60));
  group.says(milliseconds(200), over(GroupEnd::Cause::kAborted));
  run(group, options(1));
  ASSERT_EQ(group.reports.size(), 1U);
  EXPECT_EQ(group.reports[0].end, NodeReport::End::kInterrupted);
  EXPECT_EQ(group.reports[0].signal, SIGINT);
}

TEST_F(AgentTest, KeepsTheFailureWhenASignalFollows) {
  group.says(milliseconds(0), run_directive());
  group.says(milliseconds(20), {.kind = Directive::Kind::kStop});
  group.says(milliseconds(400), over(GroupEnd::Cause::kAborted));
  runner.ends(0, milliseconds(20), {.exit_code = 7});
  runner.user_sends(SIGINT, milliseconds(200));
  run(group, options(1));
  ASSERT_EQ(group.reports.size(), 2U);
  EXPECT_EQ(group.reports[0].signal, 0);
  EXPECT_EQ(group.reports[1].signal, SIGINT);
  EXPECT_EQ(group.reports[1].end, NodeReport::End::kFailed);
  EXPECT_EQ(group.reports[1].failure->ending.exit_code, 7);
}

TEST_F(AgentTest, DoesNotWaitForTheGroupAfterASecondSignal) {
  runner.user_sends(SIGINT, milliseconds(50));
  runner.user_sends(SIGINT, milliseconds(1060));
  group.says(milliseconds(5000), over(GroupEnd::Cause::kAborted));
  group.may_leave_at = Clock::time_point(milliseconds(6000));
  runner.user_sends(SIGINT, milliseconds(1500));
  EXPECT_EQ(run(group, options(1)).exit_code(), 128 + SIGINT);
  EXPECT_LT(runner.now().time_since_epoch(), milliseconds(2000));
}

TEST_F(AgentTest, TellsTheGroupOfAProgramThatCannotBeStarted) {
  group.says(milliseconds(0), run_directive());
  group.says(milliseconds(200), over(GroupEnd::Cause::kAborted));
  runner.refused_rank = 0;
  EXPECT_THROW(run(group, options(1)), c10::ValueError);
  EXPECT_EQ(group.reports.at(0).end, NodeReport::End::kRefused);
  EXPECT_EQ(group.reports.at(0).text, "rank 0 cannot be executed");
}

// Its folder does not exist. Workers that cannot be told where the store is would wait for the old one.
TEST_F(AgentTest, EndsTheJobIfItCannotTellItsWorkersOfAnotherStore) {
  Directive directive = run_directive();
  directive.round.master_port = 1;
  group.says(milliseconds(0), directive);
  directive.round.master_port = 2;
  group.says(milliseconds(150), directive);
  group.says(milliseconds(400), over(GroupEnd::Cause::kAborted));
  EXPECT_THROW(run(group, options(1)), c10::ValueError);
  EXPECT_THAT(runner.log, ElementsAre("start 0", "send SIGTERM at 200", "send SIGTERM at 200"));
  ASSERT_EQ(group.reports.size(), 1U);
  EXPECT_EQ(group.reports[0].end, NodeReport::End::kRefused);
  EXPECT_THAT(group.reports[0].text, HasSubstr("/no/such/run/store: cannot be written"));
}

TEST_F(AgentTest, EndsTheJobIfItCannotTellWorkersThatItStartsAgain) {
  Directive directive = run_directive();
  directive.round.master_port = 1;
  group.says(milliseconds(0), directive);
  group.says(milliseconds(5), {.kind = Directive::Kind::kStop});
  directive.round.master_port = 2;
  directive.round.restart_count = 1;
  group.says(milliseconds(50), directive);
  group.says(milliseconds(400), over(GroupEnd::Cause::kAborted));
  runner.ends(0, milliseconds(10), {.exit_code = 7});
  runner.reaction = milliseconds(50);
  EXPECT_THROW(run(group, options(1)), c10::ValueError);
  ASSERT_EQ(group.reports.size(), 2U);
  EXPECT_EQ(group.reports[1].end, NodeReport::End::kRefused);
}

TEST_F(AgentTest, StaysAsLongAsOthersNeedIt) {
  group.says(milliseconds(0), over(GroupEnd::Cause::kSucceeded));
  group.may_leave_at = Clock::time_point(milliseconds(350));
  run(group, options(1));
  EXPECT_EQ(runner.now().time_since_epoch(), milliseconds(400));
}

TEST_F(AgentTest, LeavesAtASignal) {
  group.says(milliseconds(0), over(GroupEnd::Cause::kSucceeded));
  group.may_leave_at = Clock::time_point::max();
  runner.user_sends(SIGTERM, milliseconds(150));
  run(group, options(1));
  EXPECT_EQ(runner.now().time_since_epoch(), milliseconds(150));
}

TEST_F(AgentTest, ReplacesARankInPlace) {
  Directive directive = run_directive(4);
  directive.round.max_restarts = 1;
  group.says(milliseconds(0), directive);
  group.says(milliseconds(400), over(GroupEnd::Cause::kSucceeded));
  group.announced_at = Clock::time_point(milliseconds(75));
  runner.ends(1, milliseconds(50), {.signal = SIGKILL});
  runner.ends(0, milliseconds(400), {});
  runner.ends(1, milliseconds(400), {});
  AgentOptions wanted = options(2);
  wanted.launch.in_place = true;
  EXPECT_EQ(run(group, wanted).exit_code(), 0);
  EXPECT_THAT(runner.log, ElementsAre("start 0", "start 1", "clear 1 at 50", "start 1", "send SIGTERM at 400"));
  EXPECT_THAT(runner.environments.at(2), Contains(Pair("TORCHELASTIC_RESTART_COUNT", "5")));
  EXPECT_THAT(runner.environments.at(2), Contains(Pair("NARROWCAST_RECOVERY", "in_place")));
  EXPECT_THAT(group.started, ElementsAre(1));
  EXPECT_EQ(told.front(),
            "rank 1 (pid 1001) was ended by SIGKILL; a new process takes its place (1 of --max_restarts=1 within an "
            "hour)");
  EXPECT_EQ(group.reports.at(0).end, NodeReport::End::kSucceeded);
}

TEST_F(AgentTest, ReportsThatItHasRecoveredTooOften) {
  Directive directive = run_directive();
  directive.round.max_restarts = 1;
  group.says(milliseconds(0), directive);
  group.says(milliseconds(100), over(GroupEnd::Cause::kAborted));
  runner.reaction = milliseconds(20);
  runner.ends(1, milliseconds(50), {.signal = SIGKILL});
  runner.ends(1, milliseconds(90), {.exit_code = 7});
  AgentOptions wanted = options(2);
  wanted.launch.in_place = true;
  run(group, wanted);
  ASSERT_EQ(group.reports.size(), 1U);
  EXPECT_EQ(group.reports[0].failure->ending.exit_code, 7);
  EXPECT_TRUE(group.reports[0].used_up);
}

}  // namespace
}  // namespace narrowcast::launcher
