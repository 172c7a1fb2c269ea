// One node's launcher: does what the group wants (rendezvous.h) with this node's workers.
//
//   waiting ── the round is complete ──> running ── a worker or another node fails, or all succeed ──┐
//      │  ^                                                                                         │
//      │  └────────────────────────────── another round ──────────────── report, and wait ──────────┘
//      └── the job is over ──> tell, stay as long as others need this launcher, end
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "trainer/launcher/job/launch_plan.h"
#include "trainer/launcher/job/supervisor.h"
#include "trainer/launcher/posix/worker_runner.h"
#include "trainer/launcher/rendezvous/rendezvous.h"

namespace narrowcast::launcher {

// What an agent starts, and how.
struct AgentOptions {
  LaunchOptions launch;
  EnvironmentVariables environment;              // what workers inherit
  std::chrono::milliseconds shutdown_timeout;    // SupervisorOptions::shutdown_timeout
  std::chrono::milliseconds signal_timeout;      // SupervisorOptions::signal_timeout
  std::chrono::milliseconds monitor_interval;    // how often the group is asked what to do
  std::function<void(const std::string&)> tell;  // prints a line for the user
  std::function<std::chrono::system_clock::time_point()> wall_clock = std::chrono::system_clock::now;
};

// Waits until `done`, which waits for something for as long as it is given and says whether it has come, while there
// are no workers. Returns the signal that the launcher was sent before, 0 if none was.
int wait_unless_interrupted(WorkerRunner& runner, const std::function<bool(std::chrono::milliseconds)>& done);

// Runs this node's workers as the group wants it, round after round.
class Agent {
 public:
  Agent(WorkerRunner& runner, Rendezvous& rendezvous, AgentOptions options);

  // Runs this node's part of the job and returns how the job ended. Throws c10::ValueError, after telling the group, if
  // a worker cannot be started.
  GroupEnd run();

 private:
  Directive next_directive();
  void run_round(const Directive& directive);
  void tell_restart(const Directive& directive) const;
  Outcome supervise_round(const std::vector<WorkerCommand>& workers);
  void report(const Outcome& outcome, const std::vector<WorkerCommand>& workers, const Round& round);
  void tell_group(const NodeReport& report);
  FailureRecord record_of(const WorkerFailure& failure, const WorkerCommand& worker) const;
  void tell_ignored() const;
  int idle();
  void await_shutdown();

  WorkerRunner& runner_;
  Rendezvous& rendezvous_;
  const AgentOptions options_;
  std::chrono::system_clock::time_point round_began_;
  std::string told_note_;
  NodeReport report_;  // of the last round
  int signals_ = 0;    // that came while there were no workers
};

}  // namespace narrowcast::launcher
