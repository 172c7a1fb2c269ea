// One node's launcher: runs this node's workers as the group decides (rendezvous.h).
//
//   waiting ── the round is complete ──> running ── a worker or another node fails, or all succeed ──┐
//      │  ^                                                                                         │
//      │  └────────────────────────────── another round ──────────────── report, and wait ──────────┘
//      └── the job is over ──> print the end, stay while others need this launcher, exit
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trainer/launcher/job/launch_plan.h"
#include "trainer/launcher/job/recovery.h"
#include "trainer/launcher/job/supervisor.h"
#include "trainer/launcher/posix/worker_runner.h"
#include "trainer/launcher/rendezvous/rendezvous.h"

namespace narrowcast::launcher {

// The workers of an agent, and its timeouts.
struct AgentOptions {
  LaunchOptions launch;
  EnvironmentVariables environment;              // inherited by workers
  std::chrono::milliseconds shutdown_timeout;    // SupervisorOptions::shutdown_timeout
  std::chrono::milliseconds signal_timeout;      // SupervisorOptions::signal_timeout
  std::chrono::milliseconds monitor_interval;    // time between two reads of the group's directive
  std::function<void(const std::string&)> tell;  // prints a line for the user
  std::function<std::chrono::system_clock::time_point()> wall_clock = std::chrono::system_clock::now;
};

// Waits, while there are no workers, until `done` returns true. `done` waits for at most the given time and returns
// whether it is done. Returns the signal that the launcher received before, or 0.
int wait_unless_interrupted(WorkerRunner& runner, const std::function<bool(std::chrono::milliseconds)>& done);

// Runs this node's workers, round after round.
class Agent {
 public:
  Agent(WorkerRunner& runner, Rendezvous& rendezvous, AgentOptions options);

  // Runs this node's part of the job and returns the end of the job. Throws c10::ValueError if a worker cannot be
  // started, or cannot be told where the store is, after reporting that to the group.
  GroupEnd run();

 private:
  Directive next_directive();
  void tell_note(const Directive& directive);
  void run_round(const Directive& directive);
  void announce_restart(const Directive& directive) const;
  void begin_recovery();
  Outcome supervise_round();
  bool goes_on();
  void follow_store(const Round& round);
  int64_t present_rank(int64_t rank) const;
  RankOfNode place_of(int64_t rank) const;
  void report(const Outcome& outcome);
  void report_to_group(const NodeReport& report);
  WorkerCommand& worker_of(int64_t rank);
  FailureRecord record_of(const WorkerFailure& failure);
  void warn_of_ignored() const;
  int idle();
  void await_shutdown();

  WorkerRunner& runner_;
  Rendezvous& rendezvous_;
  const AgentOptions options_;
  std::chrono::system_clock::time_point round_began_;
  Round round_;                              // the last round, with its present nodes
  int64_t first_worker_ = 0;                 // WorkerCommand::rank of its first worker
  std::vector<WorkerCommand> workers_;       // its workers' present processes, in rank order
  std::optional<InPlaceRecovery> recovery_;  // since the first round; empty: workers do not recover in place
  std::string last_note_;
  NodeReport report_;  // the report of the last round
  int signals_ = 0;    // signals that came while there were no workers
};

}  // namespace narrowcast::launcher
