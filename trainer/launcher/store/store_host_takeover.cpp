// How a host that takes over gathers the members of the round that it continues.
#include <algorithm>
#include <utility>

#include "trainer/launcher/store/store_host.h"
#include "trainer/launcher/store/store_protocol.h"
#include "trainer/launcher/store/worker_entries.h"

namespace narrowcast::launcher {
namespace {

// Launchers that waited for a place notice the loss when members do. Those of the lost machine do not come.
constexpr std::chrono::milliseconds kPatienceWithSpares{1000};

}  // namespace

void StoreHost::take_over(const Succession& succession, std::chrono::milliseconds patience) {
  prepared_ = succession.decision;
  places_.changes = succession.decision.changes;
  gathering_ = Gathering{.succession = succession, .patience = patience};
  for (const Member& member : succession.decision.members) {
    if (!succession.lost.contains(member.ticket)) {
      expected_.push_back(member.ticket);
    }
  }
  for (const int64_t ticket : succession.decision.spares) {
    if (ticket <= tickets_) {  // look_for_newcomers() adds the others.
      expected_.push_back(ticket);
    }
  }
}

bool StoreHost::has_joined(int64_t ticket) const {
  return std::ranges::find(nodes_, ticket, &NodeView::ticket) != nodes_.end();
}

// The members that may still come: of the decision that this host knows, and of newer ones that others know.
std::set<int64_t> StoreHost::awaited() const {
  std::set<int64_t> missing;
  const auto add = [&](int64_t ticket) {
    if (may_come(gathering_->succession, ticket) && !has_joined(ticket)) {
      missing.insert(ticket);
    }
  };
  const Decision& decision = gathering_->succession.decision;
  for (const Member& member : decision.members) {
    add(member.ticket);
  }
  for (const NodeView& node : nodes_) {
    const Change& known = node.node.known.change;
    if (known.round == decision.round && known.changes > decision.changes) {
      std::ranges::for_each(node.node.known.members, add);
    }
  }
  return missing;
}

bool StoreHost::has_missing_spares() const {
  return !std::ranges::all_of(gathering_->succession.decision.spares,
                              [this](int64_t ticket) { return has_joined(ticket); });
}

// Whether members that may still come are missing, or spares that come a moment later. Nodes in the place of lost ones
// must be in the first change, because some trainings take none in later.
bool StoreHost::is_gathering(Clock::time_point now) {
  if (!gathering_) {
    return false;
  }
  gathering_->since = gathering_->since.value_or(now);
  look_for_newcomers();
  const bool is_complete = awaited().empty();
  gathering_->complete_since =
      is_complete ? gathering_->complete_since.value_or(now) : std::optional<Clock::time_point>();
  const bool waits_for_spares =
      is_complete && has_missing_spares() && now - *gathering_->complete_since < kPatienceWithSpares;
  if (now - *gathering_->since < gathering_->patience && (!is_complete || waits_for_spares)) {
    return true;
  }
  end_gathering();
  return false;
}

// Members that have not come are lost. If they come late, they still get a welcome, to learn that. Numbers continue
// from the largest that any launcher knows.
void StoreHost::end_gathering() {
  const Succession succession = std::move(gathering_->succession);
  gathering_.reset();
  LastKnown most = {.change = {.round = succession.decision.round}};
  int64_t tickets = tickets_;
  for (const NodeView& node : nodes_) {
    const LastKnown& known = node.node.known;
    if (known.change.round == most.change.round) {
      if (known.change.changes > most.change.changes) {
        most.change.changes = known.change.changes;
        most.members = known.members;
      }
      most.losses = std::max(most.losses, known.losses);
      most.starts = std::max(most.starts, known.starts);
      most.met.insert(most.met.end(), known.met.begin(), known.met.end());
      tickets = known.members.empty() ? tickets : std::max(tickets, std::ranges::max(known.members));
    }
  }
  coordinator_.learn(most, nodes_);
  reserve_tickets(entries_.store(), tickets);
  set_starts(entries_.store(), succession.decision.run_id, most.starts);
  for (const Member& member : succession.decision.members) {
    if (!has_joined(member.ticket)) {
      const auto found = succession.lost.find(member.ticket);
      const std::string why = found == succession.lost.end() ? "it does not answer" : found->second;
      nodes_.push_back({.ticket = member.ticket, .node = {.nproc = member.nproc}, .absent = why});
    }
  }
}

}  // namespace narrowcast::launcher
