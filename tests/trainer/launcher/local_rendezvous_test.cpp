#include "trainer/launcher/local_rendezvous.h"

#include <gtest/gtest.h>

#include <csignal>

namespace narrowcast::launcher {
namespace {

class LocalRendezvousTest : public ::testing::Test {
 protected:
  static NodeReport failure() {
    FailureRecord record;
    record.ending = {.exit_code = 7};
    return {.end = NodeReport::End::kFailed, .failure = record};
  }

  int rounds_prepared = 0;
  LocalRendezvous rendezvous{{.max_restarts = 1}, [this] { ++rounds_prepared; }, [](int64_t) {}};
};

TEST_F(LocalRendezvousTest, RunsAtOnce) {
  EXPECT_EQ(rendezvous.directive().kind, Directive::Kind::kRun);
  EXPECT_FALSE(rendezvous.directive().end);
  EXPECT_EQ(rounds_prepared, 1);
}

TEST_F(LocalRendezvousTest, IsOverWhenTheWorkersSucceed) {
  rendezvous.report({});
  EXPECT_EQ(rendezvous.directive().kind, Directive::Kind::kOver);
  EXPECT_EQ(rendezvous.directive().end->exit_code(), 0);
  EXPECT_TRUE(rendezvous.may_leave());
}

TEST_F(LocalRendezvousTest, RestartsAsOftenAsIsAllowed) {
  rendezvous.report(failure());
  EXPECT_EQ(rendezvous.directive().kind, Directive::Kind::kRun);
  EXPECT_EQ(rendezvous.directive().round.restart_count, 1);
  EXPECT_EQ(rendezvous.directive().end->failure->ending.exit_code, 7);
  EXPECT_EQ(rounds_prepared, 2);
  rendezvous.report(failure());
  EXPECT_EQ(rendezvous.directive().kind, Directive::Kind::kOver);
  EXPECT_EQ(rendezvous.directive().end->exit_code(), 7);
}

TEST_F(LocalRendezvousTest, DoesNotRestartWhatASignalStopped) {
  rendezvous.report({.end = NodeReport::End::kInterrupted, .signal = SIGINT});
  EXPECT_EQ(rendezvous.directive().kind, Directive::Kind::kOver);
  EXPECT_EQ(rendezvous.directive().end->exit_code(), 128 + SIGINT);
}

TEST_F(LocalRendezvousTest, DoesNotRestartAFailureAfterASignal) {
  NodeReport report = failure();
  report.signal = SIGTERM;
  rendezvous.report(report);
  EXPECT_EQ(rendezvous.directive().kind, Directive::Kind::kOver);
  EXPECT_EQ(rendezvous.directive().end->exit_code(), 7);
}

TEST_F(LocalRendezvousTest, DoesNotRestartBesideProcessesThatSurvived) {
  NodeReport report = failure();
  report.left_behind = true;
  rendezvous.report(report);
  EXPECT_EQ(rendezvous.directive().kind, Directive::Kind::kOver);
}

TEST_F(LocalRendezvousTest, DoesNotRestartWhatCannotBeStarted) {
  rendezvous.report({.end = NodeReport::End::kRefused, .text = "cannot be executed"});
  EXPECT_EQ(rendezvous.directive().kind, Directive::Kind::kOver);
  EXPECT_EQ(rendezvous.directive().end->exit_code(), 2);
}

}  // namespace
}  // namespace narrowcast::launcher
