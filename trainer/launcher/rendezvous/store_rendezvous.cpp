#include "trainer/launcher/rendezvous/store_rendezvous.h"

#include <algorithm>
#include <utility>

#include "ops/common/text.h"
#include "trainer/base/program/failure.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kShortWait{1000};                       // shorter waits are not reported
constexpr milliseconds kLongestPause = std::chrono::hours(1);  // limit of the host's pause between two decisions

Directive over(const GroupEnd& end) { return {.kind = Directive::Kind::kOver, .end = end}; }

Round round_of(const Decision& decision, const NodeState& state, const Member& own) {
  const std::optional<network::HostAndPort> moved = network::parse_host_and_port(decision.store);
  Round round{.master_addr = moved ? moved->host : state.master_addr,
              .master_port = moved ? moved->port.value_or(0) : state.master_port,
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
  if (own == decision.members.end() && state.round == decision.round && state.reported_round != decision.round) {
    return over({.cause = GroupEnd::Cause::kAborted,
                 .text = "the launcher that took over as the host goes on without this one",
                 .code = program::kPeerFailed});
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
  return {.kind = Directive::Kind::kRun,
          .round = round_of(decision, state, *own),
          .end = decision.end,
          .note = decision.note.empty() ? "" : "waiting: " + decision.note};
}

StoreRendezvous::StoreRendezvous(const LinkOptions& options)
    : options_(options),
      own_store_(options.hosted),
      place_("the store at " + network::host_and_port(options.host, options.port)),
      link_(std::in_place, options),
      began_(Clock::now()) {}

// The host forgets a launcher that has left, so the reason to end stays here.
Directive StoreRendezvous::directive() {
  if (over_) {
    return *over_;
  }
  clock_.now();  // It must be called often.
  const LinkState state = link_->state();
  if (lost_.empty() && !state.moved.empty()) {
    follow(state.moved);
    return before_joining();
  }
  if (lost_.empty() && options_.elsewhere && state.ticket == 0 && !state.broken.empty()) {
    try_to_follow();
    return before_joining();
  }
  if (lost_.empty()) {
    const bool silent = state.decision ? host_is_silent(state) : never_spoke();
    lost_ = !state.broken.empty() ? state.broken
            : !silent             ? ""
            : state.host_is_spoiled
                ? "no heartbeat of the launcher that serves it, and another process overwrites or removes its entries"
                : "no answer; the launcher that serves it hangs, or the network is down";
    if (!lost_.empty() && find_next_host(state)) {
      lost_.clear();
    }
  }
  if (!lost_.empty()) {
    return over({.cause = GroupEnd::Cause::kAborted, .text = place_ + ": " + lost_, .code = program::kPeerFailed});
  }
  if (!state.decision) {
    return before_joining();
  }
  const GroupSettings& settings = options_.node.settings;
  const bool nodes_change = settings.in_place || settings.backend == kElasticBackend;
  Directive directive = directive_for(*state.decision, {.ticket = state.ticket,
                                                        .round = round_,
                                                        .reported_round = reported_round_,
                                                        .interrupted = signal_ != 0,
                                                        .master_addr = options_.host,
                                                        .master_port = options_.port,
                                                        .max_restarts = options_.node.settings.max_restarts,
                                                        .nodes_change = nodes_change});
  if (directive.kind == Directive::Kind::kRun || directive.awaits_report) {
    round_ = directive.round.restart_count;
  }
  if (directive.kind == Directive::Kind::kOver) {
    link_->leave();
    over_ = directive;
  }
  return directive;
}

// If the host is lost while members may change, another launcher takes over. Returns false if none may. A launcher that
// waits for a place finds that one, too.
bool StoreRendezvous::find_next_host(const LinkState& state) {
  const bool change =
      state.decision && state.decision->phase == Decision::Phase::kRunning && state.decision->changes_in_place;
  if (!change || state.is_host || signal_ != 0) {
    return false;
  }
  const bool runs = state.decision->round == round_ && reported_round_ != round_ && options_.standby != nullptr;
  if (!runs && has_member(*state.decision, state.ticket)) {
    return false;
  }
  if (state.is_succeeding && (state.server == 0 || state.server == state.ticket)) {
    return false;  // This launcher was to serve the store, and could not.
  }
  const int64_t host = state.server != 0 ? state.server : state.decision->host;
  gone_.emplace(host, lost_);
  Succession succession = {.decision = *state.decision,
                           .ticket = state.ticket,
                           .store = {},
                           .lost = gone_,
                           .pause = std::min<milliseconds>(state.host.pause, kLongestPause)};
  if (!may_take_over(succession)) {
    return false;
  }
  options_.node.known = last_known(*state.decision, starts_);
  options_.succession = std::move(succession);
  place_ = "the store that another launcher should serve";
  renew_link();
  return true;
}

// Joins the job in another store than the one where the launchers were to meet.
void StoreRendezvous::follow(const std::string& store) {
  const std::optional<network::HostAndPort> place = network::parse_host_and_port(store);
  if (!place || !place->port) {
    lost_ = "it names " + in_quotes(store) + " as the store where the job runs";
    return;  // The next directive ends the launcher.
  }
  options_.elsewhere = Endpoint{.host = place->host, .port = *place->port};
  place_ = "the store at " + store;
  options_.left_behind = store_here();
  if (std::exchange(followed_, store) != store) {
    began_ = Clock::now();
    astray_since_.reset();
  }
  renew_link();
}

// The launcher there was lost, too: the endpoint will tell who took over from it. If the job there has ended, nobody
// tells. A launcher that serves the endpoint begins another job then. Before, it waits as long as the next host
// may need until it leads this launcher on: otherwise both jobs would run.
void StoreRendezvous::try_to_follow() {
  const Clock::time_point now = clock_.now();
  astray_since_ = astray_since_.value_or(now);
  if (store_here() == nullptr || now - *astray_since_ > options_.rendezvous.to_be_led_on(options_.monitor_interval)) {
    return follow_no_more();
  }
  renew_link();
}

// The store where the launchers were to meet, if this one serves it; else null.
std::shared_ptr<HostedStore> StoreRendezvous::store_here() const {
  return own_store_ != nullptr || options_.endpoint == nullptr ? own_store_ : options_.endpoint->served();
}

void StoreRendezvous::follow_no_more() {
  options_.elsewhere.reset();
  astray_since_.reset();
  place_ = "the store at " + network::host_and_port(options_.host, options_.port);
  renew_link(store_here());
}

void StoreRendezvous::renew_link(std::shared_ptr<HostedStore> hosted) {
  link_->abandon();
  options_.hosted = std::move(hosted);
  link_.emplace(options_);
  if (succeeded_) {
    link_->rank_succeeded(*succeeded_);
  }
  for (const RankOfNode& rank : starting_) {
    link_->announce_start(rank);
  }
  answers_ = 0;
  renewed_ = clock_.now();
  heard_ = renewed_;
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
  // Each member before this one may take the time-out to notice the loss.
  const auto patience = static_cast<int64_t>(state.decision->members.size()) * options_.rendezvous.heartbeat_timeout +
                        options_.rendezvous.read_timeout;
  heard_ = state.is_succeeding && now - renewed_ < patience ? now : heard_;
  return !state.is_host && now - heard_ > options_.rendezvous.heartbeat_timeout + pauses;
}

// Returns whether the store's port accepts connections but never answers like a store. If nothing listened, the link
// would have failed before.
bool StoreRendezvous::never_spoke() const {
  const RendezvousOptions& limits = options_.rendezvous;
  return options_.hosted == nullptr && !astray_since_ &&
         Clock::now() - began_ > 2 * limits.read_timeout + limits.heartbeat_timeout;
}

void StoreRendezvous::rank_succeeded(const RankOfNode& rank) {
  succeeded_ = rank;
  link_->rank_succeeded(rank);
}

void StoreRendezvous::announce_start(const RankOfNode& rank) {
  starting_.insert(rank);
  link_->announce_start(rank);
}

std::optional<int64_t> StoreRendezvous::announced_start(const RankOfNode& rank) {
  const LinkState state = link_->state();
  const auto found = state.starts.find(rank);
  if (found == state.starts.end()) {
    return std::nullopt;
  }
  starting_.erase(rank);
  starts_ = std::max(starts_, found->second);
  return found->second;
}

SilentRanks StoreRendezvous::silent_ranks(const std::set<RankOfNode>& ranks) {
  link_->watch(ranks);
  return link_->state().silent;
}

void StoreRendezvous::report(const NodeReport& report) {
  signal_ = signal_ == 0 ? report.signal : signal_;
  reported_round_ = round_;
  starting_.clear();
  succeeded_.reset();
  link_->watch({});
  if (lost_.empty()) {  // After a loss the others must see missing heartbeats; a report would look requested.
    link_->report({.round = round_, .report = report});
  }
}

bool StoreRendezvous::may_leave() {
  const LinkState state = link_->state();
  const Clock::time_point now = Clock::now();
  over_since_ = over_since_.value_or(now);
  const bool done = state.left && state.others_left;
  return done || !lost_.empty() || !state.decision || now - *over_since_ > options_.rendezvous.close_timeout;
}

}  // namespace narrowcast::launcher
