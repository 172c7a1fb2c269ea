// Tests what happens to the others when a launcher is killed between any two steps of a round.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/loopback_socket.h"
#include "tests/support/patience.h"
#include "tests/support/ranks.h"
#include "trainer/base/process/failpoint.h"
#include "trainer/base/program/failure.h"
#include "trainer/launcher/rendezvous/store_rendezvous.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;
using testing::fork_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
constexpr int kKilledLauncher = 128 + SIGKILL;

// Rank 0 serves the store.
struct LauncherDeath {
  Failpoint point;
  int64_t nth = 1;
  int64_t rank = 1;
};

const LauncherDeath kLauncherDeaths[] = {
    {.point = Failpoint::kTicketDrawn},
    {.point = Failpoint::kFirstBeatGiven},
    {.point = Failpoint::kNodeDescribed},
    {.point = Failpoint::kReportWritten},
    {.point = Failpoint::kLeaveWritten},
    {.point = Failpoint::kTicketDrawn, .rank = 0},
    {.point = Failpoint::kNodeDescribed, .rank = 0},
    {.point = Failpoint::kDecisionPublished, .rank = 0},
    {.point = Failpoint::kDecisionPublished, .nth = 2, .rank = 0},
    {.point = Failpoint::kRoundPrepared, .rank = 0},
    {.point = Failpoint::kReportWritten, .rank = 0},
};

// The minimum is one node, the maximum two.
LinkOptions link_options(int64_t rank, int64_t port, std::shared_ptr<HostedStore> hosted) {
  LinkOptions options;
  options.host = "127.0.0.1";
  options.port = port;
  options.node = {.host = "h",
                  .pid = 7 + rank,
                  .nproc = 1,
                  .node_rank = rank,
                  .settings = {.backend = kElasticBackend, .min_nodes = 1, .max_nodes = 2, .max_restarts = 3}};
  options.rendezvous.last_call_timeout = milliseconds(1000);
  options.rendezvous.keep_alive_interval = milliseconds(50);
  options.rendezvous.keep_alive_max_attempt = 40;
  options.rendezvous.heartbeat_timeout = milliseconds(5000);
  options.rendezvous.read_timeout = milliseconds(5000);
  options.rendezvous.close_timeout = milliseconds(3000);
  options.monitor_interval = milliseconds(5);
  options.hosted = std::move(hosted);
  options.run_id = "made-up";
  return options;
}

// Runs rounds whose workers succeed at once, and returns the end of the job.
GroupEnd run_rounds(StoreRendezvous& rendezvous) {
  int64_t run = -1;
  int64_t reported = -1;
  for (const auto deadline = Clock::now() + testing::kPatience; Clock::now() < deadline;) {
    const Directive directive = rendezvous.directive();
    if (directive.kind == Directive::Kind::kOver) {
      while (!rendezvous.may_leave() && Clock::now() < deadline) testing::pause_between_looks();
      return directive.end.value();
    }
    run = directive.kind == Directive::Kind::kRun ? directive.round.restart_count : run;
    if (run > reported) {
      rendezvous.report({.end = NodeReport::End::kSucceeded});
      reported = run;
    }
    testing::pause_between_looks();
  }
  return {.cause = GroupEnd::Cause::kAborted, .text = "the test's patience has ended", .code = -1};
}

GroupEnd run_launcher(int64_t rank, const Group& group) {
  std::optional<network::ListeningSocket> socket;
  std::shared_ptr<HostedStore> store;
  if (rank == 0) {
    socket = testing::loopback_socket();
    store = std::make_shared<HostedStore>("127.0.0.1", *socket);
  }
  std::vector<at::Tensor> port{at::full({1}, rank == 0 ? socket->port() : 0, at::kLong)};
  group->broadcast(port)->wait();
  StoreRendezvous rendezvous(link_options(rank, port[0].item<int64_t>(), store));
  return run_rounds(rendezvous);
}

class LauncherDies : public ::testing::TestWithParam<LauncherDeath> {};

// If a member dies, the job continues and succeeds. If the launcher that serves the store dies, the job ends with the
// code for a lost peer.
TEST_P(LauncherDies, OthersGoOnOrSayWhoWasLost) {
  if (!has_failpoints()) GTEST_SKIP() << "this build has no failpoints (NARROWCAST_FAILPOINTS)";
  const LauncherDeath& death = GetParam();
  const std::vector<int> codes = fork_ranks(2, [&](int64_t rank, const Group& group) {
    if (rank == death.rank) kill_at(death.point, death.nth);
    const GroupEnd end = run_launcher(rank, group);
    EXPECT_EQ(end.exit_code(), death.rank == 1 ? program::kSuccess : program::kPeerFailed) << end.text;
  });
  EXPECT_EQ(codes[static_cast<size_t>(death.rank)], kKilledLauncher);
  EXPECT_EQ(codes[static_cast<size_t>(1 - death.rank)], testing::kRankPassed);
}

INSTANTIATE_TEST_SUITE_P(Points, LauncherDies, ::testing::ValuesIn(kLauncherDeaths), [](const auto& info) {
  return "point_" + std::to_string(static_cast<int>(info.param.point)) + "_time_" + std::to_string(info.param.nth) +
         "_rank_" + std::to_string(info.param.rank);
});

TEST(LauncherDeaths, AreOfEveryPoint) {
  std::set<Failpoint> tried;
  for (const LauncherDeath& death : kLauncherDeaths) tried.insert(death.point);
  for (int point = static_cast<int>(Failpoint::kTicketDrawn); point <= static_cast<int>(kLastFailpoint); ++point) {
    EXPECT_TRUE(tried.contains(static_cast<Failpoint>(point))) << point;
  }
}

}  // namespace
}  // namespace narrowcast::launcher
