#include "trainer/launcher/rendezvous/store_rendezvous.h"

#include <algorithm>

#include "trainer/base/program/failure.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kShortWait{1000};                       // shorter waits are not reported
constexpr milliseconds kLongestPause = std::chrono::hours(1);  // limit of the host's pause between two decisions

Directive over(const GroupEnd& end) { return {.kind = Directive::Kind::kOver, .end = end}; }

Round round_of(const Decision& decision, const NodeState& state, const Member& own) {
  Round round{.master_addr = state.master_addr,
              .master_port = state.master_port,
              .run_id = decision.run_id,
              .nodes = static_cast<int64_t>(decision.members.size()),
              .world_size = 0,
              .role_world_size = 0,
              .restart_count = decision.round,
              .node = state.nodes_change ? own.ticket : 0,
              .changes = decision.changes,
              .losses = decision.losses,
              .change = decision.change,
              .max_restarts = state.max_restarts};
  for (const Member& member : decision.members) {
    if (member.ticket == own.ticket) {
      round.node_rank = &member - decision.members.data();
      round.first_rank = round.world_size;
      round.role_first_rank = round.role_world_size;
    }
    round.world_size += member.nproc;
    round.role_world_size += member.role == own.role ? member.nproc : 0;
  }
  return round;
}

}  // namespace

Directive directive_for(const Decision& decision, const NodeState& state) {
  if (const auto reason = decision.evicted.find(state.ticket); reason != decision.evicted.end()) {
    return over(reason->second);
  }
  if (decision.phase == Decision::Phase::kOver) {
    return over(*decision.end);
  }
  const auto own = std::find_if(decision.members.begin(), decision.members.end(),
                                [&](const Member& member) { return member.ticket == state.ticket; });
  if (decision.phase == Decision::Phase::kForming) {
    return {.note = decision.note.empty() ? "" : "waiting: " + decision.note};
  }
  if (own == decision.members.end()) {
    return {.note = "waiting: the job runs with " + std::to_string(decision.members.size()) + " nodes"};
  }
  if (decision.phase == Decision::Phase::kStopping && state.reported_round != decision.round && !state.interrupted) {
    return {.kind = Directive::Kind::kStop, .round = round_of(decision, state, *own), .awaits_report = true};
  }
  if (decision.phase == Decision::Phase::kStopping || state.reported_round == decision.round || state.interrupted) {
    return {.kind = Directive::Kind::kStop};
  }
  return {.kind = Directive::Kind::kRun, .round = round_of(decision, state, *own), .end = decision.end};
}

StoreRendezvous::StoreRendezvous(const LinkOptions& options)
    : options_(options),
      place_("the store at " + network::host_and_port(options.host, options.port)),
      link_(options),
      began_(Clock::now()) {}

Directive StoreRendezvous::directive() {
  const LinkState state = link_.state();
  if (lost_.empty()) {
    const bool silent = state.decision ? host_is_silent(state) : never_spoke();
    lost_ = !state.broken.empty() ? state.broken
            : !silent             ? ""
            : state.host_is_spoiled
                ? "no heartbeat of the launcher that serves it, and another process overwrites or removes its entries"
                : "no answer; the launcher that serves it hangs, or the network is down";
  }
  if (!lost_.empty()) {
    return over({.cause = GroupEnd::Cause::kAborted, .text = place_ + ": " + lost_, .code = program::kPeerFailed});
  }
  if (!state.decision) {
    return before_joining();
  }
  Directive directive =
      directive_for(*state.decision, {.ticket = state.ticket,
                                      .reported_round = reported_round_,
                                      .interrupted = signal_ != 0,
                                      .master_addr = options_.host,
                                      .master_port = options_.port,
                                      .max_restarts = options_.node.settings.max_restarts,
                                      .nodes_change = options_.node.settings.backend == kElasticBackend});
  if (directive.kind == Directive::Kind::kRun || directive.awaits_report) {
    round_ = directive.round.restart_count;
  }
  if (directive.kind == Directive::Kind::kOver) {
    link_.leave();
  }
  return directive;
}

Directive StoreRendezvous::before_joining() const {
  if (signal_ != 0) {
    return over({.cause = GroupEnd::Cause::kInterrupted, .signal = signal_});
  }
  const bool worth_telling = options_.hosted == nullptr && Clock::now() - began_ > kShortWait;
  return {.note = worth_telling ? "waiting for " + place_ : ""};
}

// Returns whether the host's heartbeat timeout has passed. The host itself serves the store and has no such timeout.
bool StoreRendezvous::host_is_silent(const LinkState& state) {
  const Clock::time_point now = clock_.now();
  heard_ = state.answers != answers_ ? now : heard_;
  answers_ = state.answers;
  const milliseconds pauses = 2 * std::clamp(state.host.pause, milliseconds(0), kLongestPause);
  return options_.hosted == nullptr && now - heard_ > options_.rendezvous.heartbeat_timeout + pauses;
}

// Returns whether the store's port accepts connections but never answers like a store. If nothing listened, the link
// would have failed before.
bool StoreRendezvous::never_spoke() const {
  const RendezvousOptions& limits = options_.rendezvous;
  return options_.hosted == nullptr && Clock::now() - began_ > 2 * limits.read_timeout + limits.heartbeat_timeout;
}

std::optional<int64_t> StoreRendezvous::announced_start(const NumberedRank& rank) {
  const LinkState state = link_.state();
  const auto found = state.starts.find(rank);
  return found == state.starts.end() ? std::nullopt : std::optional(found->second);
}

SilentRanks StoreRendezvous::silent_ranks(const std::set<NumberedRank>& ranks) {
  link_.watch(ranks);
  return link_.state().silent;
}

void StoreRendezvous::report(const NodeReport& report) {
  signal_ = signal_ == 0 ? report.signal : signal_;
  reported_round_ = round_;
  link_.watch({});
  if (lost_.empty()) {  // After a loss the others must see missing heartbeats; a report would look requested.
    link_.report({.round = round_, .report = report});
  }
}

bool StoreRendezvous::may_leave() {
  const LinkState state = link_.state();
  const Clock::time_point now = Clock::now();
  over_since_ = over_since_.value_or(now);
  const bool done = state.left && state.others_left;
  return done || !lost_.empty() || !state.decision || now - *over_since_ > options_.rendezvous.close_timeout;
}

}  // namespace narrowcast::launcher
