// Decides for the whole group; one launcher has it, the one that serves the store.
//
//   forming ── the members are complete (membership.h) ──> running ── all succeed ──────────────────────> over
//      ^                                                     │
//      │                     a member fails, is lost or leaves; or a node comes and the job has a place
//      │                                                     v
//      └── another round is allowed ── every member has reported or is lost ── stopping ── none is ─────> over
//
// A round that a failure ended counts against --max_restarts; one that ended because nodes came, left or were lost does
// not (verdict.h).
//
// Each step is told the time. A coordinator that was itself stopped for a while (SIGSTOP, a sleeping machine) must not
// take its own pause for everybody else's silence: who calls step() passes a clock that leaves such pauses out.
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
#include "trainer/launcher/group/verdict.h"

namespace narrowcast::launcher {

// The state of the job, and the decision that follows from it.
class Coordinator {
 public:
  // Of how many launchers that were turned away a decision tells, and of as many that were members: strangers may come
  // as often as they like, and all launchers read it. Those before them were told in earlier decisions; where more come
  // at once, some wait in vain, until the job is over.
  static constexpr size_t kMostTold = 256;

  // `own` is the launcher that it is in; `run_id` names the job if --rdzv_id does not.
  Coordinator(const NodeDescription& own, const GroupTimeouts& timeouts, const std::string& run_id);

  // The decision at `now`, after a look at all nodes that ever came, the own one first.
  const Decision& step(Clock::time_point now, const std::vector<NodeView>& nodes);

  const Decision& decision() const { return decision_; }

  // Whether no other launcher needs this one any more.
  bool everyone_left() const { return decision_.phase == Decision::Phase::kOver && roster_.others_left(); }

 private:
  void admit(const NodeView& newcomer);
  void released(const Roster::Node& node);
  void evict(int64_t ticket, GroupEnd end);
  void turn_away(int64_t ticket, const std::string& reason, int code);
  bool cannot_form(const Applicants& found);
  void form();
  void look_at_members();
  void look_at_newcomers();
  void conclude();
  void restart(Verdict verdict);
  void finish(GroupEnd end);
  void give_up(const std::string& text, int code);

  bool present(const Roster::Node& node) const;
  bool is_member(int64_t ticket) const;
  const Member* lost_member() const;
  Applicants applicants();
  std::string lost_because(const Roster::Node& node) const;

  const NodeDescription own_;
  const GroupTimeouts timeouts_;
  std::unique_ptr<Membership> membership_;
  Roster roster_;
  Clock::time_point now_;
  std::optional<Clock::time_point> forming_since_;
  std::optional<Clock::time_point> enough_since_;
  RestartRule restarts_;
  std::string newcomer_;              // for whom the round is stopped
  std::set<int64_t> turned_away_;     // all tickets of launchers that have no part in the job any more,
  std::deque<int64_t> told_;          // and the last of them, in their order, of which the decision tells,
  std::deque<int64_t> members_told_;  // and those of them that were members
  Decision decision_;
};

}  // namespace narrowcast::launcher
