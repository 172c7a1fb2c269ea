#include "trainer/launcher/group/coordinator.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "ops/common/text.h"
#include "trainer/base/program/failure.h"

namespace narrowcast::launcher {
namespace {

std::string seconds(std::chrono::milliseconds time) {
  return c10::str(static_cast<double>(time.count()) / 1000.0, " s");
}

}  // namespace

Coordinator::Coordinator(const NodeDescription& own, const GroupTimeouts& timeouts, const std::string& run_id)
    : own_(own),
      timeouts_(timeouts),
      membership_(make_membership(own.settings, timeouts)),
      roster_(timeouts.silence),
      restarts_(RestartRule::for_rounds(own.settings.max_restarts)) {
  decision_.run_id = own.settings.rdzv_id.empty() ? run_id : own.settings.rdzv_id;
}

Coordinator::Coordinator(const NodeDescription& own, const GroupTimeouts& timeouts, const Succession& succession)
    : Coordinator(own, timeouts, succession.decision.run_id) {
  decision_ = succession.decision;
  decision_.host = succession.ticket;
  store_ = succession.store;
  add_place(store_);
  regroups_ = true;
  quorum_.succeed(decision_.members);
  for (const Member& member : decision_.members) {
    if (member.is_new) {
      joined_.insert(member.ticket);
    }
  }
  awaited_spares_.insert(decision_.spares.begin(), decision_.spares.end());
  for (const auto& [ticket, end] : decision_.evicted) {
    turned_away_.insert(ticket);
    listed_.push_back(ticket);
  }
}

void Coordinator::add_place(const std::string& place) {
  std::vector<std::string>& places = decision_.places;
  if (std::ranges::find(places, place) != places.end()) {
    return;
  }
  if (std::ssize(places) == kMostPlaces) {
    places.erase(places.begin() + 1);
  }
  places.push_back(place);
}

const Decision& Coordinator::step(Clock::time_point now, const std::vector<NodeView>& nodes) {
  now_ = now;
  began_ = began_.value_or(now);
  forming_since_ = forming_since_.value_or(now);
  for (const NodeView& newcomer : roster_.look(now, nodes)) {
    admit(newcomer);
  }
  for (const auto& [ticket, node] : roster_.nodes()) {
    released(node);
    if (node.view.left && !is_member(ticket)) {
      decision_.evicted.erase(ticket);  // It has read it.
      std::erase(listed_, ticket);
      std::erase(listed_members_, ticket);
    }
  }
  switch (decision_.phase) {
    case Decision::Phase::kForming:
      form();
      break;
    case Decision::Phase::kRunning:
      confirm_members();
      decision_.changes_in_place = changes_in_place() && quorum_.is_confirmed();
      if (decision_.changes_in_place) {
        quorum_.expect_successors();
      }
      if (changes_in_place()) {
        turn_misfits_away();
        change_members();
      }
      mark_newcomers();
      note_unfitting();
      look_at_newcomers();
      look_at_members();
      break;
    case Decision::Phase::kStopping:
      conclude();
      break;
    case Decision::Phase::kOver:
      break;
  }
  note_spares();
  return decision_;
}

// A host that took over also lists the spares that may still come. If it is lost before they do, they keep their
// tickets.
void Coordinator::note_spares() {
  if (now_ - *began_ > timeouts_.silence) {
    awaited_spares_.clear();
  }
  std::erase_if(awaited_spares_, [this](int64_t ticket) { return roster_.nodes().contains(ticket); });
  std::set<int64_t> spares = awaited_spares_;
  for (const auto& [ticket, node] : roster_.nodes()) {
    if (present(node) && !is_member(ticket)) {
      spares.insert(ticket);
    }
  }
  const auto last = std::next(spares.begin(), std::min(std::ssize(spares), kMostSpares));
  decision_.spares.assign(spares.begin(), last);
}

// A launcher with other settings is an error: for the whole job before its first round, later for that launcher alone.
void Coordinator::admit(const NodeView& newcomer) {
  if (!newcomer.unreadable.empty() || !newcomer.absent.empty()) {
    return;  // released() turns it away.
  }
  const std::string contradiction = difference(own_, newcomer.node);
  if (contradiction.empty() || decision_.phase == Decision::Phase::kOver) {
    return;
  }
  if (decision_.members.empty()) {
    give_up("launchers disagree: " + contradiction, program::kWrongUse);
  } else {
    turn_away(newcomer.ticket, "launchers disagree: " + contradiction, program::kWrongUse);
  }
}

// Removes a node that is lost, or that leaves a job which continues without it.
void Coordinator::released(const Roster::Node& node) {
  const int64_t ticket = node.view.ticket;
  if (!node.view.unreadable.empty()) {
    turn_away(ticket, "the host cannot read this launcher's entries: " + node.view.unreadable, program::kCorruptInput);
  } else if (node.lost) {
    turn_away(ticket, "the host removed this launcher from the job: " + lost_because(node), program::kPeerFailed);
  } else if (node.wants_to_leave() && may_leave(ticket)) {
    evict(ticket, {.cause = GroupEnd::Cause::kInterrupted, .signal = node.view.report->report.signal});
  }
}

// With fixed ranks, only a launcher that waits for a place may. A signal to another one ends the job.
bool Coordinator::may_leave(int64_t ticket) const {
  const bool waits = !decision_.members.empty() && !is_member(ticket);
  return ticket != decision_.host && (membership_->elastic() || waits);
}

void Coordinator::evict(int64_t ticket, GroupEnd end) {
  if (!turned_away_.insert(ticket).second) {
    return;
  }
  decision_.evicted.emplace(ticket, std::move(end));
  std::deque<int64_t>& listed = is_member(ticket) ? listed_members_ : listed_;
  listed.push_back(ticket);
  if (listed.size() > kMostListed) {
    decision_.evicted.erase(listed.front());
    listed.pop_front();
  }
}

void Coordinator::turn_away(int64_t ticket, const std::string& reason, int code) {
  evict(ticket, {.cause = GroupEnd::Cause::kAborted, .text = printable(reason, kLongestReason), .code = code});
}

bool Coordinator::is_done_with(int64_t ticket) const {
  const auto found = roster_.nodes().find(ticket);
  return found != roster_.nodes().end() && turned_away_.contains(ticket) && !is_member(ticket) &&
         (found->second.lost || found->second.view.left);
}

bool Coordinator::present(const Roster::Node& node) const {
  return !node.view.left && !turned_away_.contains(node.view.ticket);
}

Applicants Coordinator::applicants() {
  Applicants found{.nodes = {}, .before = decision_.members};
  for (const auto& [ticket, node] : roster_.nodes()) {
    if (present(node)) {
      found.nodes.push_back(node.view);
    }
  }
  enough_since_ = membership_->enough(found) ? enough_since_.value_or(now_) : std::optional<Clock::time_point>();
  if (enough_since_) {
    found.enough = std::chrono::duration_cast<std::chrono::milliseconds>(now_ - *enough_since_);
  }
  return found;
}

// Returns whether the job ends before its next round, and then ends it.
bool Coordinator::cannot_form(const Applicants& found) {
  for (const NodeView& view : found.nodes) {
    if (roster_.nodes().at(view.ticket).wants_to_leave()) {
      finish(
          {.cause = GroupEnd::Cause::kInterrupted, .signal = view.report->report.signal, .text = name_of(view.node)});
      return true;
    }
  }
  const std::string conflict = membership_->conflict(found);
  if (!conflict.empty()) {
    give_up(conflict, program::kWrongUse);
  } else if (!membership_->survives_losses() && lost_member() != nullptr) {
    const Member& lost = *lost_member();
    give_up(lost.name + " was lost: " + lost_because(roster_.nodes().at(lost.ticket)), program::kPeerFailed);
  } else if (!has_majority()) {
    end_minority();
  } else if (!enough_since_ && now_ - *forming_since_ > timeouts_.join) {
    give_up_waiting(found);
  }
  return decision_.phase == Decision::Phase::kOver;
}

void Coordinator::form() {
  const Applicants found = applicants();
  if (cannot_form(found)) {
    return;
  }
  std::vector<Member> members = membership_->form(found);
  if (members.empty()) {
    decision_.note = membership_->missing(found);
    return;
  }
  decision_.members = std::move(members);
  decision_.changes = 0;
  decision_.losses = 0;
  decision_.change.clear();
  gone_.clear();
  joined_.clear();
  regroups_ = false;
  newcomers_ = Newcomers::kJoin;
  ranks_divide_ = 0;
  misfits_.clear();
  is_ending_ = false;
  decision_.store = store_;
  quorum_.propose(decision_.members);
  decision_.changes_in_place = false;
  decision_.phase = Decision::Phase::kRunning;
  decision_.note.clear();
  round_began_ = now_;
}

bool Coordinator::is_member(int64_t ticket) const {
  return std::any_of(decision_.members.begin(), decision_.members.end(),
                     [ticket](const Member& member) { return member.ticket == ticket; });
}

const Member* Coordinator::lost_member() const {
  const auto lost =
      std::ranges::find_if(decision_.members, [this](const Member& member) { return roster_.is_lost(member.ticket); });
  return lost == decision_.members.end() ? nullptr : &*lost;
}

std::string Coordinator::lost_because(const Roster::Node& node) const {
  if (!node.view.unreadable.empty() || !node.view.absent.empty()) {
    return node.view.unreadable + node.view.absent;
  }
  const std::string silence = "no heartbeat for " + seconds(timeouts_.silence);
  return node.was_tampered_with() ? silence + ", and another process overwrites or removes its entries in the store"
                                  : silence;
}

// How long a launcher may wait for a place that is taken. With fixed ranks, the one that has it is lost by then, or
// stays.
std::chrono::milliseconds Coordinator::patience_with_spares() const {
  if (membership_->elastic()) {
    return timeouts_.join;
  }
  return membership_->survives_losses() ? 2 * timeouts_.silence : std::chrono::milliseconds(0);
}

// Whether another launcher has the only place that the node can have.
bool Coordinator::has_twin(const NodeView& view) const {
  return !membership_->elastic() && std::ranges::any_of(decision_.members, [&](const Member& member) {
    const Roster::Node& node = roster_.nodes().at(member.ticket);
    return present(node) && node.view.node.node_rank == view.node.node_rank;
  });
}

void Coordinator::look_at_newcomers() {
  const bool full = static_cast<int64_t>(decision_.members.size()) == own_.settings.max_nodes || !takes_newcomers();
  for (const auto& [ticket, node] : roster_.nodes()) {
    if (is_member(ticket) || !present(node)) {
      continue;
    }
    if (!full && numbers_ranks_anew() && (is_ending_ || is_beginning())) {
      continue;  // It came too late, or so early that the ranks do not know yet whether they can take it in.
    } else if (!full && !(changes_in_place() && may_change_members())) {
      newcomer_ = name_of(node.view.node);
      decision_.phase = Decision::Phase::kStopping;
    } else if (!full || now_ - node.came < patience_with_spares()) {
      continue;
    } else if (membership_->elastic()) {
      turn_away(ticket, "no place became free within " + seconds(timeouts_.join), program::kPeerFailed);
    } else if (has_twin(node.view)) {
      turn_away(ticket, c10::str("the job is already running with another --node_rank=", node.view.node.node_rank),
                program::kWrongUse);
    }
  }
}

// The ranks of a node that joined too late still start, or find that others have ended.
std::optional<NodeReport> Coordinator::report_of(const Member& member) const {
  return is_too_late(member.ticket) ? NodeReport{.end = NodeReport::End::kSucceeded}
                                    : roster_.report(member.ticket, decision_.round);
}

void Coordinator::look_at_members() {
  bool all_succeeded = true;
  const bool are_changing = changes_in_place() && may_change_members();
  for (const Member& member : decision_.members) {
    if (are_changing && !present(roster_.nodes().at(member.ticket))) {
      return;  // The others wait for enough nodes.
    }
    const auto report = report_of(member);
    all_succeeded = all_succeeded && report && report->end == NodeReport::End::kSucceeded;
    const bool is_lost = roster_.is_lost(member.ticket) && !is_too_late(member.ticket);
    if (is_lost || (report && report->end != NodeReport::End::kSucceeded)) {
      decision_.phase = Decision::Phase::kStopping;
    }
  }
  if (all_succeeded) {
    conclude();
  }
}

// Decides what follows the round, once all its members have reported or are lost.
void Coordinator::conclude() {
  std::vector<MemberResult> results;
  for (const Member& member : decision_.members) {
    results.push_back({member, report_of(member)});
    if (!results.back().report && !roster_.is_lost(member.ticket)) {
      return;
    }
  }
  const Member* const lost = lost_member();
  // When ranks have ended, nobody may come any more in the place of a lost node with a fixed rank.
  const bool outlives_losses = membership_->survives_losses() && (membership_->elastic() || !is_ending_);
  restart(judge(results, {.elastic = membership_->elastic(),
                          .host_ticket = decision_.host,
                          .survives_losses = outlives_losses,
                          .lost_because = lost == nullptr ? "" : lost_because(roster_.nodes().at(lost->ticket)),
                          .newcomer = newcomer_}));
}

void Coordinator::restart(Verdict verdict) {
  const bool counts = verdict.kind == Verdict::Kind::kCountedRestart;
  if (verdict.kind == Verdict::Kind::kOver || (counts && !restarts_.allows(verdict.end))) {
    return finish(std::move(verdict.end));
  }
  decision_.end = std::move(verdict.end);
  decision_.phase = Decision::Phase::kForming;
  ++decision_.round;
  newcomer_.clear();
  forming_since_ = now_;
  enough_since_.reset();
}

void Coordinator::finish(GroupEnd end) {
  decision_.phase = Decision::Phase::kOver;
  decision_.end = std::move(end);
  decision_.note.clear();
}

void Coordinator::give_up_waiting(const Applicants& found) {
  give_up("not complete within " + seconds(timeouts_.join) + ": " + membership_->missing(found), program::kPeerFailed);
}

void Coordinator::give_up(const std::string& text, int code) {
  finish({.cause = GroupEnd::Cause::kAborted, .text = text, .code = code});
}

}  // namespace narrowcast::launcher
