#include "trainer/launcher/job/agent.h"

#include <c10/util/Exception.h>

#include "trainer/base/network/addresses.h"
#include "trainer/base/network/store_file.h"
#include "trainer/base/program/failure.h"
#include "trainer/launcher/group/verdict.h"
#include "trainer/launcher/posix/last_lines.h"

namespace narrowcast::launcher {
namespace {

int64_t milliseconds_since_1970(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
}

NodeReport::End end_of(const Outcome& outcome) {
  if (outcome.failure) {
    return NodeReport::End::kFailed;
  }
  if (outcome.interrupted_by != 0) {
    return NodeReport::End::kInterrupted;
  }
  return outcome.stopped_by_group ? NodeReport::End::kStopped : NodeReport::End::kSucceeded;
}

// "4 ranks on 2 nodes"
std::string world_text(const Round& round) {
  return std::to_string(round.world_size) + (round.world_size == 1 ? " rank" : " ranks") +
         (round.nodes == 1 ? "" : " on " + std::to_string(round.nodes) + " nodes");
}

}  // namespace

int wait_unless_interrupted(WorkerRunner& runner, const std::function<bool(std::chrono::milliseconds)>& done) {
  constexpr std::chrono::milliseconds kBetweenLooks{20};
  while (!done(kBetweenLooks)) {
    const Event event = runner.wait(runner.now() + std::chrono::milliseconds(1));
    if (event.kind == Event::Kind::kSignal) {
      return event.signal;
    }
  }
  return 0;
}

Agent::Agent(WorkerRunner& runner, Rendezvous& rendezvous, AgentOptions options)
    : runner_(runner), rendezvous_(rendezvous), options_(std::move(options)) {}

GroupEnd Agent::run() {
  for (;;) {
    const Directive directive = next_directive();
    if (directive.kind == Directive::Kind::kOver) {
      for (const std::string& line : describe_end(*directive.end)) {
        options_.tell(line);
      }
      await_shutdown();
      warn_of_ignored();
      return *directive.end;
    }
    run_round(directive);
  }
}

void Agent::warn_of_ignored() const {
  if (const int64_t ignored = rendezvous_.ignored_entries(); ignored > 0) {
    options_.tell("another process wrote to the launchers' store: ignored " + std::to_string(ignored) +
                  (ignored == 1 ? " entry" : " entries") + " that did not belong to this job");
  }
}

// Waits until a round can run, or the job is over.
Directive Agent::next_directive() {
  Directive directive = rendezvous_.directive();
  while (directive.kind == Directive::Kind::kWait || directive.kind == Directive::Kind::kStop) {
    tell_note(directive);
    if (directive.awaits_report) {
      report_to_group({.end = NodeReport::End::kStopped});  // The round ended before this node could start its workers.
    }
    const int signal = idle();
    if (signals_ > 1) {  // A second signal ends the launcher before the group has reacted to the first.
      return {.kind = Directive::Kind::kOver,
              .end = GroupEnd{.cause = GroupEnd::Cause::kInterrupted, .signal = signal}};
    }
    directive = rendezvous_.directive();
  }
  return directive;
}

void Agent::tell_note(const Directive& directive) {
  if (!directive.note.empty() && directive.note != last_note_) {
    options_.tell(directive.note);
    last_note_ = directive.note;
  }
}

// Waits for monitor_interval without workers. Returns a signal that came, and reports the first one to the group;
// otherwise returns 0.
int Agent::idle() {
  const Event event = runner_.wait(runner_.now() + options_.monitor_interval);
  if (event.kind != Event::Kind::kSignal) {
    return 0;
  }
  if (++signals_ == 1) {
    report_.signal = event.signal;
    if (report_.end != NodeReport::End::kFailed) {
      report_ = {.end = NodeReport::End::kInterrupted, .signal = event.signal};
    }
    report_to_group(report_);
  }
  return event.signal;
}

void Agent::run_round(const Directive& directive) {
  last_note_.clear();
  announce_restart(directive);
  try {
    if (round_.master_port != 0) {
      follow_store(directive.round);
    }
    round_ = directive.round;
    first_worker_ = round_.first_rank;
    workers_ = plan_workers(options_.launch, round_, options_.environment);
    round_began_ = options_.wall_clock();
    if (options_.launch.in_place) {
      begin_recovery();
    }
    report(supervise_round());
  } catch (const c10::Error& error) {
    report_to_group({.end = NodeReport::End::kRefused, .text = error.what_without_backtrace()});
    await_shutdown();
    throw;
  }
}

void Agent::announce_restart(const Directive& directive) const {
  if (!directive.end || directive.round.changes > 0) {  // A node that joins a round starts nothing again.
    return;
  }
  for (const std::string& line : describe_end(*directive.end)) {
    options_.tell(line);
  }
  const Round& round = directive.round;
  options_.tell("restart " + std::to_string(round.restart_count) +
                " (--max_restarts=" + std::to_string(round.max_restarts) + "): " + world_text(round));
}

// The recovery outlives a round, because it counts the processes of the last hour.
void Agent::begin_recovery() {
  if (!recovery_) {
    const auto command = [this](int64_t rank, int64_t number) {
      return worker_of(rank) = plan_replacement(options_.launch, round_, worker_of(rank), number);
    };
    recovery_.emplace(rendezvous_, RecoveryOptions{.max_restarts = round_.max_restarts,
                                                   .present = [this](int64_t rank) { return present_rank(rank); },
                                                   .place = [this](int64_t rank) { return place_of(rank); },
                                                   .record = [this](const auto& failure) { return record_of(failure); },
                                                   .command = command,
                                                   .now = [this] { return runner_.now(); },
                                                   .tell = options_.tell});
  }
  recovery_->begin_round();
}

Outcome Agent::supervise_round() {
  SupervisorOptions supervision;
  supervision.shutdown_timeout = options_.shutdown_timeout;
  supervision.signal_timeout = options_.signal_timeout;
  supervision.monitor_interval = options_.monitor_interval;
  supervision.stop_wanted = [this] { return !goes_on(); };
  supervision.others_go_on = [this] {
    return recovery_.has_value() && rendezvous_.directive().kind == Directive::Kind::kOver;
  };
  supervision.succeeded = [this](int64_t rank) {
    const bool are_numbered_anew = options_.launch.in_place && round_.node > 0;  // Otherwise workers know no nodes.
    rendezvous_.rank_succeeded(are_numbered_anew ? place_of(rank) : RankOfNode{.rank_on_node = rank});
    if (recovery_) {
      recovery_->rank_succeeded();
    }
  };
  supervision.replacer = recovery_ ? &*recovery_ : nullptr;
  return supervise(runner_, workers_, supervision);
}

// Returns whether the group goes on with the round. Its nodes may have changed.
bool Agent::goes_on() {
  const Directive directive = rendezvous_.directive();
  if (directive.kind != Directive::Kind::kRun) {
    return false;
  }
  const bool have_changed = directive.round.changes != round_.changes;
  const Round& round = directive.round;
  const bool has_moved = round.master_addr != round_.master_addr || round.master_port != round_.master_port;
  if (have_changed || has_moved || round.losses != round_.losses) {
    follow_store(directive.round);
    round_ = directive.round;
    options_.tell(round_.change + (have_changed ? ": goes on with " + world_text(round_) : ": waits for other nodes"));
  }
  tell_note(directive);
  return true;
}

// Tells the workers if another launcher serves the store from this round, or this change, on.
void Agent::follow_store(const Round& round) {
  if (round.master_addr != round_.master_addr || round.master_port != round_.master_port) {
    network::write_store_file(store_file(options_.launch.output.run_folder), {round.master_addr, round.master_port});
    options_.tell("another launcher serves the store: from now on nodes join with --rdzv_endpoint=" +
                  network::host_and_port(round.master_addr, round.master_port));
  }
}

RankOfNode Agent::place_of(int64_t rank) const { return {.node = round_.node, .rank_on_node = rank - first_worker_}; }

// The number that a worker has in the job now.
int64_t Agent::present_rank(int64_t rank) const { return place_of(rank).rank_on_node + round_.first_rank; }

void Agent::report(const Outcome& outcome) {
  report_ = {.end = end_of(outcome),
             .signal = outcome.interrupted_by,
             .stopped_ranks = outcome.stopped_ranks,
             .killed = outcome.killed,
             .left_behind = outcome.left_behind};
  if (outcome.failure) {
    report_.failure = record_of(*outcome.failure);
  }
  if (recovery_) {
    recovery_->complete(report_);
  }
  report_to_group(report_);
}

void Agent::report_to_group(const NodeReport& report) { rendezvous_.report(bounded(report)); }

WorkerCommand& Agent::worker_of(int64_t rank) { return workers_.at(static_cast<size_t>(rank - first_worker_)); }

FailureRecord Agent::record_of(const WorkerFailure& failure) {
  const WorkerCommand& worker = worker_of(failure.rank);
  program::WorkerError error = program::read_error_file(worker.error_file);
  const bool only_in_file = !worker.error.shown && !worker.error.file.empty();
  return {.rank = present_rank(failure.rank),
          .pid = failure.pid,
          .node = "",
          .ending = failure.ending,
          .time_ms = milliseconds_since_1970(round_began_ + failure.after),
          .after = failure.after,
          .message = std::move(error.message),
          .is_final = error.is_final,
          .is_misfit = error.is_misfit,
          .log_file = worker.error.file,
          .last_lines = only_in_file ? read_last_lines(worker.error.file) : runner_.last_error_lines(failure.rank)};
}

void Agent::await_shutdown() {
  while (rendezvous_.directive().kind != Directive::Kind::kOver || !rendezvous_.may_leave()) {
    if (runner_.wait(runner_.now() + options_.monitor_interval).kind == Event::Kind::kSignal) {
      return;
    }
  }
}

}  // namespace narrowcast::launcher
