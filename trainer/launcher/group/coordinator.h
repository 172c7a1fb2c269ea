// Takes the decisions of the whole group. Only the launcher that serves the store, the host, has a coordinator.
//
//   forming ── members complete (membership.h) ──> running ── all succeed ──────────────────────> over
//      ^                                              │
//      │                       a member fails, is lost or leaves; or a node joins
//      │                                              v
//      └── another round allowed ── all reported or lost ── stopping ── no more rounds ───────────> over
//
// A node that joins stops the round only if the job has fewer members than --nnodes allows.
//
// With recovery in place, nodes come and go while a round runs, as long as no member has reported: the members change,
// and the ranks of those that stay live on. If too few nodes stay, their ranks wait for others to come. The ranks of a
// newcomer start while the others work (rendezvous::Progress). If they end before they meet the others, that node alone
// ends. Members know which of them are new, and tell it to a host that takes over. If none of them has read that a node
// has met the others, its ranks meet the others once more.
//
// A round that ended by a failure counts against --max_restarts. A round that ended because nodes came, left or were
// lost does not count (verdict.h).
//
// The caller of step() passes the time. A coordinator that was itself stopped for a while (SIGSTOP, a suspended
// machine) must not take its own pause for missing heartbeats of the others. The caller's clock therefore leaves such
// pauses out.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trainer/launcher/group/group.h"
#include "trainer/launcher/group/membership.h"
#include "trainer/launcher/group/restart_rule.h"
#include "trainer/launcher/group/succession.h"
#include "trainer/launcher/group/verdict.h"

namespace narrowcast::launcher {

// The nodes that may join a round that runs.
enum class Newcomers {
  kJoin,         // all, up to the most
  kReplaceLost,  // only in the place of others that are lost: the ranks could not give them their state
};

// The state of the job, and the decision that follows from it.
class Coordinator {
 public:
  // A decision lists at most this many launchers that were turned away, and at most as many former members. The list is
  // bounded because anybody may connect, any number of times, and all launchers read it ten times a second. Entries of
  // launchers that have read theirs, and older ones, are dropped. If more launchers are turned away at once, some never
  // learn it and wait until the job is over.
  static constexpr size_t kMostListed = 64;

  // `own` describes the launcher that the coordinator runs in. `run_id` names the job if --rdzv_id does not.
  Coordinator(const NodeDescription& own, const GroupTimeouts& timeouts, const std::string& run_id);

  // Continues the round of a host that was lost.
  Coordinator(const NodeDescription& own, const GroupTimeouts& timeouts, const Succession& succession);

  // Adds a place to which launchers may come, "HOST:PORT". The first one is kept, of the others the last.
  void add_place(const std::string& place);

  // Updates the decision at time `now` from the state of all nodes that came and are not forgotten. All members must be
  // among them.
  const Decision& step(Clock::time_point now, const std::vector<NodeView>& nodes);

  const Decision& decision() const { return decision_; }

  // After which time without a heartbeat a node is lost.
  std::chrono::milliseconds silence() const { return timeouts_.silence; }

  // Whether ranks of a round that runs may be numbered anew.
  bool numbers_ranks_anew() const { return own_.settings.in_place; }

  // Tells, before the first step() of a host that took over, the most that all launchers together know of the round,
  // and who has joined this host.
  void learn(const LastKnown& known, const std::vector<NodeView>& joined);

  // Tells that the ranks of the round can form a new group. Only then do members change while it runs. The number of
  // ranks must divide `ranks_divide`; 0: any number of ranks works.
  void let_members_change(Newcomers newcomers = Newcomers::kJoin, int64_t ranks_divide = 0) {
    regroups_ = true;
    newcomers_ = newcomers;
    ranks_divide_ = ranks_divide;
  }

  // Whether a node joins the round that runs, or has done so, and had not met the others at a later change:
  // NodeView::progress of these counts.
  bool is_newcomer(int64_t ticket) const {
    return decision_.phase == Decision::Phase::kRunning && (joined_.contains(ticket) || !is_member(ticket));
  }

  // The members without whose ranks those of the others meet: these are enough, and it starts, or with its ranks their
  // number would not fit.
  std::set<int64_t> left_out() const;

  // Tells that a rank of the round has ended with success, so that the others do so soon. From now on nobody joins.
  void let_round_end() { is_ending_ = true; }

  // Returns whether nothing that this launcher writes counts any more: it was turned away, and is lost or has ended.
  bool is_done_with(int64_t ticket) const;
  // Whether such a launcher was a member of the round.
  bool was_member(int64_t ticket) const { return gone_.contains(ticket); }
  // Forgets such a launcher. It must not be among the nodes of step() any more.
  void forget(int64_t ticket) {
    roster_.forget(ticket);
    gone_.erase(ticket);
  }

  // Number of launchers that are not forgotten.
  int64_t known_nodes() const { return static_cast<int64_t>(roster_.nodes().size()); }

  // Returns whether no other launcher needs this one any more.
  bool everyone_left() const {
    return decision_.phase == Decision::Phase::kOver && roster_.others_left(decision_.host);
  }

 private:
  static constexpr size_t kLongestReason = 1024;  // bytes

  void note_spares();
  void admit(const NodeView& newcomer);
  void released(const Roster::Node& node);
  bool may_leave(int64_t ticket) const;
  void evict(int64_t ticket, GroupEnd end);
  void turn_away(int64_t ticket, const std::string& reason, int code);
  bool cannot_form(const Applicants& found);
  void form();
  void confirm_members();
  // A misfit that was turned away cannot continue elsewhere, so it does not count as lost. The host has forgotten nodes
  // that are long gone.
  Quorum::IsHere is_here() const {
    return [this](const Member& member) {
      const auto found = roster_.nodes().find(member.ticket);
      return misfits_.contains(member.ticket) || (found != roster_.nodes().end() && present(found->second));
    };
  }
  bool has_majority() const { return quorum_.suffices(is_here()); }
  void end_minority();
  void change_members();
  void wait_for_members(const Applicants& found);
  void adopt(const std::vector<int64_t>& tickets, const std::vector<NodeView>& joined);
  void note_newcomers(const std::vector<Member>& members);
  void mark_newcomers();
  void note_unfitting();
  rendezvous::Progress progress_of(int64_t ticket) const;
  bool is_starting(int64_t ticket) const { return progress_of(ticket) == rendezvous::Progress::kStart; }
  bool has_met(int64_t ticket) const { return progress_of(ticket) == rendezvous::Progress::kMet; }
  // Nobody waits for ranks that have not met the others when these end.
  bool is_too_late(int64_t ticket) const { return is_ending_ && !has_met(ticket); }
  std::string why_misfit(const Member& member) const;
  bool takes_newcomers() const;
  void turn_misfits_away();
  bool is_beginning() const { return !regroups_ && now_ - round_began_ < timeouts_.last_call; }
  bool changes_in_place() const { return regroups_ && !is_ending_ && numbers_ranks_anew(); }
  std::optional<NodeReport> report_of(const Member& member) const;
  bool may_change_members() const;
  void look_at_members();
  void look_at_newcomers();
  bool has_twin(const NodeView& view) const;
  void conclude();
  void restart(Verdict verdict);
  void finish(GroupEnd end);
  void give_up_waiting(const Applicants& found);
  void give_up(const std::string& text, int code);

  bool present(const Roster::Node& node) const;
  bool is_member(int64_t ticket) const;
  const Member* lost_member() const;
  std::chrono::milliseconds patience_with_spares() const;
  Applicants applicants();
  std::string lost_because(const Roster::Node& node) const;
  std::string describe_losses() const;
  std::string describe_change(const std::vector<Member>& members) const;

  const NodeDescription own_;
  const GroupTimeouts timeouts_;
  std::unique_ptr<Membership> membership_;
  Roster roster_;
  Clock::time_point now_;
  Clock::time_point round_began_;
  std::optional<Clock::time_point> began_;  // first step()
  std::optional<Clock::time_point> forming_since_;
  std::optional<Clock::time_point> enough_since_;
  RestartRule restarts_;
  bool regroups_ = false;
  Newcomers newcomers_ = Newcomers::kJoin;
  int64_t ranks_divide_ = 0;
  bool is_ending_ = false;
  Quorum quorum_;
  std::string store_;                       // Decision::store from the next change on
  std::set<int64_t> joined_;                // members that are newcomers
  std::set<int64_t> gone_;                  // members of the round that are gone
  std::map<int64_t, std::string> misfits_;  // members that joined, and whose ranks do not work with the others: why
  std::string newcomer_;                    // the node for which the round is stopped
  std::set<int64_t> awaited_spares_;        // of the lost host, which have not come here yet
  std::set<int64_t> turned_away_;           // tickets of all launchers that were turned away
  std::deque<int64_t> listed_;              // the latest of them that the decision lists, oldest first: non-members
  std::deque<int64_t> listed_members_;      // and members
  Decision decision_;
};

}  // namespace narrowcast::launcher
