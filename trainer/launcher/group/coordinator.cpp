#include "trainer/launcher/group/coordinator.h"

#include <absl/strings/str_join.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "ops/common/text.h"
#include "trainer/base/program/failure.h"

namespace narrowcast::launcher {
namespace {

constexpr size_t kLongestReason = 1024;  // bytes

std::string seconds(std::chrono::milliseconds time) {
  return c10::str(static_cast<double>(time.count()) / 1000.0, " s");
}

bool wants_to_leave(const Roster::Node& node) { return node.view.report && node.view.report->report.signal != 0; }

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
  regroups_ = true;
  quorum_.succeed(decision_.members);
  for (const auto& [ticket, end] : decision_.evicted) {
    turned_away_.insert(ticket);
    listed_.push_back(ticket);
  }
}

const Decision& Coordinator::step(Clock::time_point now, const std::vector<NodeView>& nodes) {
  now_ = now;
  forming_since_ = forming_since_.value_or(now);
  for (const NodeView& newcomer : roster_.look(now, nodes)) {
    admit(newcomer);
  }
  for (const auto& [ticket, node] : roster_.nodes()) {
    released(node);
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
        change_members();
      }
      look_at_newcomers();
      look_at_members();
      break;
    case Decision::Phase::kStopping:
      conclude();
      break;
    case Decision::Phase::kOver:
      break;
  }
  return decision_;
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
  } else if (wants_to_leave(node) && membership_->elastic() && ticket != decision_.host) {
    evict(ticket, {.cause = GroupEnd::Cause::kInterrupted, .signal = node.view.report->report.signal});
  }
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
    if (wants_to_leave(roster_.nodes().at(view.ticket))) {
      finish(
          {.cause = GroupEnd::Cause::kInterrupted, .signal = view.report->report.signal, .text = name_of(view.node)});
      return true;
    }
  }
  const std::string conflict = membership_->conflict(found);
  if (!conflict.empty()) {
    give_up(conflict, program::kWrongUse);
  } else if (!membership_->elastic() && lost_member() != nullptr) {
    const Member& lost = *lost_member();
    give_up(lost.name + " was lost: " + lost_because(roster_.nodes().at(lost.ticket)), program::kPeerFailed);
  } else if (!has_majority()) {
    end_minority();
  } else if (!enough_since_ && now_ - *forming_since_ > timeouts_.join) {
    give_up("not complete within " + seconds(timeouts_.join) + ": " + membership_->missing(found),
            program::kPeerFailed);
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
  is_ending_ = false;
  decision_.store = store_;
  quorum_.propose(decision_.members);
  decision_.changes_in_place = false;
  decision_.phase = Decision::Phase::kRunning;
  decision_.note.clear();
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

// Returns whether all members that are still there run their workers.
bool Coordinator::may_change_members() const {
  return std::none_of(decision_.members.begin(), decision_.members.end(), [&](const Member& member) {
    return present(roster_.nodes().at(member.ticket)) && roster_.report(member.ticket, decision_.round);
  });
}

// Notes the members as those of which a majority counts, once all of them know of each other.
void Coordinator::confirm_members() {
  const Change last = {.round = decision_.round, .changes = decision_.changes};
  const bool all_know = std::ranges::all_of(decision_.members, [&](const Member& member) {
    const Roster::Node& node = roster_.nodes().at(member.ticket);
    return present(node) && node.view.known == last;
  });
  if (all_know) {
    quorum_.confirm();
  }
}

void Coordinator::end_minority() {
  const std::vector<Member>& members = quorum_.members();
  give_up(c10::str(describe_losses(), ": ", std::ranges::count_if(members, is_here()), " of ", members.size(),
                   " nodes are left, and the others may continue without them"),
          program::kPeerFailed);
}

// Removes members that are gone and admits newcomers, while the ranks of the others live on.
void Coordinator::change_members() {
  if (!may_change_members()) {
    return;
  }
  const size_t gone_before = gone_.size();
  for (const Member& member : decision_.members) {
    if (!present(roster_.nodes().at(member.ticket))) {
      gone_.insert(member.ticket);
    }
  }
  const bool is_loss = gone_.size() > gone_before;
  if (is_loss && !has_majority()) {
    return end_minority();
  }
  decision_.losses += is_loss ? 1 : 0;
  decision_.store = store_;
  const Applicants found = applicants();
  std::vector<Member> members = membership_->form(found);
  if (members.empty()) {
    if (is_loss) {
      forming_since_ = now_;
      decision_.change = describe_losses();
    }
    return wait_for_members(found);
  }
  decision_.note.clear();
  if (std::string change = describe_change(members); !change.empty()) {
    for (const Member& member : members) {
      if (!is_member(member.ticket)) {
        joined_.insert(member.ticket);
      }
    }
    decision_.change = std::move(change);
    decision_.members = std::move(members);
    ++decision_.changes;
    quorum_.propose(decision_.members);
  }
}

// Too few nodes are left. Their ranks wait.
void Coordinator::wait_for_members(const Applicants& found) {
  decision_.note = membership_->missing(found);
  if (now_ - *forming_since_ > timeouts_.join) {
    give_up("not complete within " + seconds(timeouts_.join) + ": " + decision_.note, program::kPeerFailed);
  }
}

// Names the members that are gone. Empty if none is.
std::string Coordinator::describe_losses() const {
  std::vector<std::string> losses;
  for (const Member& member : decision_.members) {
    const Roster::Node& node = roster_.nodes().at(member.ticket);
    if (!present(node)) {
      losses.push_back(member.name + (wants_to_leave(node) ? " left" : " was lost: " + lost_because(node)));
    }
  }
  return printable(absl::StrJoin(losses, ", "), kLongestReason);
}

// Names also those of `members` that are new.
std::string Coordinator::describe_change(const std::vector<Member>& members) const {
  std::vector<std::string> changes;
  if (std::string losses = describe_losses(); !losses.empty()) {
    changes.push_back(std::move(losses));
  }
  for (const Member& member : members) {
    if (!is_member(member.ticket)) {
      changes.push_back(name_of(roster_.nodes().at(member.ticket).view.node) + " joined");
    }
  }
  return printable(absl::StrJoin(changes, ", "), kLongestReason);
}

void Coordinator::look_at_newcomers() {
  const bool full = static_cast<int64_t>(decision_.members.size()) == own_.settings.max_nodes;
  for (const auto& [ticket, node] : roster_.nodes()) {
    if (is_member(ticket) || !present(node)) {
      continue;
    }
    if (!membership_->elastic()) {
      turn_away(ticket, "the job is already running with all of its nodes", program::kWrongUse);
    } else if (!full && is_ending_ && numbers_ranks_anew()) {
      continue;  // It came too late.
    } else if (!full && !(changes_in_place() && may_change_members())) {
      newcomer_ = name_of(node.view.node);
      decision_.phase = Decision::Phase::kStopping;
    } else if (full && now_ - node.came > timeouts_.join) {
      turn_away(ticket, "no place became free within " + seconds(timeouts_.join), program::kPeerFailed);
    }
  }
}

// The ranks of a node that joined too late find that others have ended.
std::optional<NodeReport> Coordinator::report_of(const Member& member) const {
  std::optional<NodeReport> report = roster_.report(member.ticket, decision_.round);
  const bool came_too_late = is_ending_ && joined_.contains(member.ticket) && report &&
                             report->end == NodeReport::End::kFailed &&
                             report->failure->ending.exit_code == program::kPeerFailed;
  return came_too_late ? NodeReport{.end = NodeReport::End::kSucceeded} : report;
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
    if (roster_.is_lost(member.ticket) || (report && report->end != NodeReport::End::kSucceeded)) {
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
  restart(judge(results, {.elastic = membership_->elastic(),
                          .host_ticket = decision_.host,
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

void Coordinator::give_up(const std::string& text, int code) {
  finish({.cause = GroupEnd::Cause::kAborted, .text = text, .code = code});
}

}  // namespace narrowcast::launcher
