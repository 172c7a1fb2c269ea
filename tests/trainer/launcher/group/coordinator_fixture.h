// Launchers of a job that a coordinator sees, without processes.
#pragma once

#include <gtest/gtest.h>

#include <csignal>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trainer/launcher/group/coordinator.h"

namespace narrowcast::launcher {

using std::chrono::milliseconds;
using Phase = Decision::Phase;

// Simulated launchers: they send heartbeats while they live, and report as the test sets.
class CoordinatorTest : public ::testing::Test {
 protected:
  void begin(const GroupSettings& settings) {
    settings_ = settings;
    coordinator.emplace(describe("a", 0), timeouts, "made-up");
    comes("a", 0);
  }
  void begin_static(int64_t nodes, int64_t max_restarts = 0) {
    begin({.backend = "static", .min_nodes = nodes, .max_nodes = nodes, .max_restarts = max_restarts});
  }
  void begin_elastic(int64_t least, int64_t most) {
    begin({.backend = "c10d", .min_nodes = least, .max_nodes = most, .max_restarts = 1});
  }

  void begin_in_place(int64_t least, int64_t most) {
    begin({.backend = "c10d", .min_nodes = least, .max_nodes = most, .max_restarts = 1, .in_place = true});
  }
  void begin_static_in_place(int64_t nodes) {
    begin({.backend = "static", .min_nodes = nodes, .max_nodes = nodes, .max_restarts = 1, .in_place = true});
  }
  // The round runs, and its ranks can form a new group.
  void runs_in_place() {
    EXPECT_EQ(after(100).phase, Phase::kRunning);
    coordinator->let_members_change();
  }

  NodeDescription describe(const std::string& host, int64_t node_rank) const {
    return {.host = host, .pid = 7, .nproc = 2, .node_rank = node_rank, .settings = settings_};
  }
  // Adds a launcher and returns its ticket.
  int64_t comes(const std::string& host, int64_t node_rank) {
    views.push_back({.ticket = static_cast<int64_t>(views.size()) + 1, .node = describe(host, node_rank)});
    return views.back().ticket;
  }
  // A job of nodes "a" and "b" with tickets 1 and 2, in its first round.
  void run_two_static(int64_t max_restarts = 0) {
    begin_static(2, max_restarts);
    comes("b", 1);
    EXPECT_EQ(after(100).phase, Phase::kRunning);
  }

  // The same with c10d and a minimum of one node.
  void run_two_elastic() {
    begin_elastic(1, 2);
    comes("b", 0);
    EXPECT_EQ(after(100).phase, Phase::kRunning);
  }

  const Decision& decision() const { return coordinator->decision(); }
  const GroupEnd& end() const { return decision().end.value(); }
  bool is_left_out(int64_t ticket) const { return coordinator->left_out().contains(ticket); }
  NodeView& view(int64_t ticket) { return views.at(static_cast<size_t>(ticket - 1)); }

  void reports(int64_t ticket, NodeReport::End end, int exit_code = 0) {
    NodeReport report{.end = end, .signal = end == NodeReport::End::kInterrupted ? SIGTERM : 0};
    if (end == NodeReport::End::kFailed) {
      report.failure = FailureRecord{};
      report.failure->ending = {.exit_code = exit_code};
    }
    view(ticket).report = RoundReport{.round = decision().round, .report = report};
  }

  // Advances the time. Live launchers send heartbeats and, unless they are deaf, know the last decision.
  const Decision& after(int64_t time) {
    now += milliseconds(time);
    for (NodeView& node : views) {
      const bool lives = !dead.contains(node.ticket);
      node.beats += lives ? 1 : 0;
      if (lives && !deaf.contains(node.ticket) && decision().phase == Phase::kRunning) {
        node.known = {.round = decision().round, .changes = decision().changes};
      }
    }
    return coordinator->step(now, views);
  }
  // Advances beyond the join timeout, in steps shorter than the heartbeat timeout.
  void after_the_join_timeout() {
    for (int i = 0; i < 21; ++i) {
      after(500);
    }
  }

  GroupSettings settings_;
  GroupTimeouts timeouts{.join = milliseconds(10000), .last_call = milliseconds(2000), .silence = milliseconds(1000)};
  std::optional<Coordinator> coordinator;
  std::vector<NodeView> views;
  std::set<int64_t> dead;
  std::set<int64_t> deaf;
  Clock::time_point now;
};

}  // namespace narrowcast::launcher
