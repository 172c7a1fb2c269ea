// The coordinator's decisions about nodes that come and go while a round runs.
#include <absl/strings/str_join.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "ops/common/text.h"
#include "trainer/base/program/failure.h"
#include "trainer/launcher/group/coordinator.h"
#include "trainer/launcher/group/fitting_nodes.h"

namespace narrowcast::launcher {

// If another launcher knows a newer change, the members here become a change after that one.
void Coordinator::learn(const LastKnown& known, const std::vector<NodeView>& joined) {
  if (known.change.round == decision_.round && known.change.changes > decision_.changes) {
    decision_.changes = known.change.changes + 1;
    adopt(known.members, joined);
  }
  if (known.change.round == decision_.round) {
    decision_.losses = std::max(decision_.losses, known.losses);
    for (const int64_t ticket : known.met) {
      joined_.erase(ticket);  // No node of a round becomes new again.
    }
  }
}

// Makes these the members: those that joined the round stay in it while others are missing. This host knows nothing
// of a member that has not joined it. With fixed ranks, the one before stays in its place.
void Coordinator::adopt(const std::vector<int64_t>& tickets, const std::vector<NodeView>& joined) {
  std::vector<Member> members;
  for (size_t place = 0; place < tickets.size(); ++place) {
    const auto before = std::ranges::find(decision_.members, tickets[place], &Member::ticket);
    const auto now = std::ranges::find_if(
        joined, [&](const NodeView& view) { return view.ticket == tickets[place] && view.unreadable.empty(); });
    if (before != decision_.members.end()) {
      members.push_back(*before);
    } else if (now != joined.end()) {
      members.push_back(member_of(now->node, tickets[place], std::ssize(members)));
    } else if (!membership_->elastic() && place < decision_.members.size()) {
      members.push_back(decision_.members[place]);
    }
  }
  const bool is_whole = membership_->elastic() ? !members.empty() : std::ssize(members) == own_.settings.max_nodes;
  if (is_whole) {
    note_newcomers(members);
    decision_.members = std::move(members);
  }
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

// Whether nodes may join although all members are there.
bool Coordinator::takes_newcomers() const {
  return newcomers_ == Newcomers::kJoin || !changes_in_place() ||
         std::ranges::any_of(decision_.members,
                             [this](const Member& member) { return !present(roster_.nodes().at(member.ticket)); });
}

rendezvous::Progress Coordinator::progress_of(int64_t ticket) const {
  const auto found = roster_.nodes().find(ticket);
  return !joined_.contains(ticket)        ? rendezvous::Progress::kMet
         : found == roster_.nodes().end() ? rendezvous::Progress::kStart
                                          : found->second.view.progress;
}

std::set<int64_t> Coordinator::left_out() const {
  // Ranks that keep newcomers out meet one in the place of a lost node at once: they would never take it in later.
  const bool waits_for_ranks = newcomers_ == Newcomers::kJoin;
  const auto starts = [&](int64_t node) { return (waits_for_ranks && is_starting(node)) || is_too_late(node); };
  std::set<int64_t> out;
  std::vector<WaitingNode> waiting;
  int64_t nodes = 0;
  int64_t ranks = 0;
  const auto is_present = [&](const Member& member) { return present(roster_.nodes().at(member.ticket)); };
  const auto others = std::ranges::count_if(
      decision_.members, [&](const Member& member) { return is_present(member) && !starts(member.ticket); });
  for (const Member& member : decision_.members) {
    if (others >= own_.settings.min_nodes && starts(member.ticket)) {
      out.insert(member.ticket);
    } else if (is_present(member) && has_met(member.ticket)) {
      ++nodes;
      ranks += member.nproc;
    } else if (is_present(member)) {
      waiting.push_back({.ticket = member.ticket, .ranks = member.nproc});
    }
  }
  const std::set<int64_t> fitting = nodes_that_fit(
      waiting, {.ranks = ranks, .ranks_divide = ranks_divide_, .missing = own_.settings.min_nodes - nodes});
  for (const WaitingNode& node : waiting) {
    if (!fitting.contains(node.ticket)) out.insert(node.ticket);
  }
  return out;
}

// Tells which nodes are ready and not taken in.
void Coordinator::note_unfitting() {
  if (!changes_in_place() || ranks_divide_ == 0) {
    return;
  }
  const std::set<int64_t> out = left_out();
  std::vector<std::string> names;
  for (const Member& member : decision_.members) {
    const bool is_ready = progress_of(member.ticket) == rendezvous::Progress::kReady;
    if (is_ready && out.contains(member.ticket)) names.push_back(member.name);
  }
  if (!names.empty()) {
    decision_.note = printable(c10::str(absl::StrJoin(names, ", "), names.size() == 1 ? " waits" : " wait",
                                        " until more nodes join: the number of ranks must divide ", ranks_divide_),
                               kLongestReason);
  }
}

// Why a newcomer cannot work with the others: it has other flags, or its ranks have ended while they started. Empty if
// it may. One that has worked with them before is no misfit, whatever its ranks fail with.
std::string Coordinator::why_misfit(const Member& member) const {
  const std::optional<NodeReport> report = roster_.report(member.ticket, decision_.round);
  if (member.ticket == decision_.host || !joined_.contains(member.ticket) || !report) {
    return "";
  }
  if (report->end == NodeReport::End::kFailed) {
    const FailureRecord& failure = *report->failure;
    // A user's program has an exit code of its own.
    const bool has_other_flags =
        failure.is_final && (failure.is_misfit || failure.ending.exit_code == program::kWrongUse);
    const std::string why = failure.message.empty() ? describe(failure.ending) : failure.message;
    return has_other_flags || !has_met(member.ticket) ? why : "";
  }
  if (has_met(member.ticket)) {
    return "";
  }
  return report->end == NodeReport::End::kRefused     ? report->text
         : report->end == NodeReport::End::kSucceeded ? "its ranks ended with exit code 0 before they joined the "
                                                        "others (were they given --help, --version or --dry_run?)"
                                                      : "";
}

// Misfits end alone. The others go on without them.
void Coordinator::turn_misfits_away() {
  for (const Member& member : decision_.members) {
    if (const std::string why = why_misfit(member); !why.empty()) {
      const NodeReport report = *roster_.report(member.ticket, decision_.round);
      const int code = report.failure ? report.failure->ending.code() : program::kWrongUse;
      misfits_.emplace(member.ticket,
                       has_met(member.ticket) ? "its ranks do not fit the others" : "its ranks did not start");
      turn_away(member.ticket, "the others go on without this node: " + why, code);
    }
  }
}

// Removes members that are gone and admits newcomers, while the ranks of the others live on.
void Coordinator::change_members() {
  if (!may_change_members()) {
    return;
  }
  bool is_loss = false;
  bool is_loss_for_ranks = false;  // They have a group with the node's ranks. To others, their places tell it.
  for (const Member& member : decision_.members) {
    if (!present(roster_.nodes().at(member.ticket)) && gone_.insert(member.ticket).second) {
      is_loss = true;
      is_loss_for_ranks = is_loss_for_ranks || has_met(member.ticket);
    }
  }
  if (is_loss && !has_majority()) {
    return end_minority();
  }
  decision_.store = store_;
  Applicants found = applicants();
  if (!takes_newcomers()) {
    std::erase_if(found.nodes, [this](const NodeView& view) { return !is_member(view.ticket); });
  }
  std::vector<Member> members = membership_->form(found);
  if (members.empty()) {
    if (is_loss) {
      forming_since_ = now_;
      ++decision_.losses;
      decision_.change = describe_losses();
    }
    return wait_for_members(found);
  }
  decision_.losses += is_loss_for_ranks ? 1 : 0;
  decision_.note.clear();
  if (std::string change = describe_change(members); !change.empty()) {
    note_newcomers(members);
    decision_.change = std::move(change);
    decision_.members = std::move(members);
    ++decision_.changes;
    quorum_.propose(decision_.members);
  }
}

// A newcomer that had met the others before this change may have worked with them.
void Coordinator::note_newcomers(const std::vector<Member>& members) {
  std::set<int64_t> newcomers;
  for (const Member& member : members) {
    if (!is_member(member.ticket) || !has_met(member.ticket)) {
      newcomers.insert(member.ticket);
    }
  }
  joined_ = std::move(newcomers);
}

void Coordinator::mark_newcomers() {
  for (Member& member : decision_.members) {
    member.is_new = !has_met(member.ticket);
  }
}

// Too few nodes are left. Their ranks wait.
void Coordinator::wait_for_members(const Applicants& found) {
  decision_.note = membership_->missing(found);
  if (now_ - *forming_since_ > timeouts_.join) {
    give_up_waiting(found);
  }
}

// Names the members that are gone. Empty if none is.
std::string Coordinator::describe_losses() const {
  std::vector<std::string> losses;
  for (const Member& member : decision_.members) {
    const Roster::Node& node = roster_.nodes().at(member.ticket);
    if (!present(node)) {
      losses.push_back(member.name + (node.wants_to_leave()              ? " left"
                                      : misfits_.contains(member.ticket) ? " was removed: " + misfits_.at(member.ticket)
                                                                         : " was lost: " + lost_because(node)));
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

}  // namespace narrowcast::launcher
