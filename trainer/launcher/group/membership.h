// Keeps track of live launchers and selects the members of a round. This is the difference between
// --rdzv_backend=static and c10d.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/launcher/group/group.h"
#include "trainer/launcher/posix/worker_runner.h"

namespace narrowcast::launcher {

// All launchers that came and are not forgotten, and which of them still live.
class Roster {
 public:
  struct Node {
    NodeView view;
    Clock::time_point came;
    Clock::time_point heard;      // time of its last heartbeat
    int64_t spoiled_by_then = 0;  // view.spoiled at that time
    bool lost = false;            // heartbeat timeout, or unreadable entries; never reset

    // Whether somebody has overwritten or removed its heartbeats since the last one.
    bool was_tampered_with() const { return view.spoiled > spoiled_by_then; }
    // Whether its launcher has received a signal.
    bool wants_to_leave() const { return view.report && view.report->report.signal != 0; }
  };

  // A node without a heartbeat for longer than `silence` is lost.
  explicit Roster(std::chrono::milliseconds silence) : silence_(silence) {}

  // Updates all nodes at time `now`. Returns the nodes that were not known before.
  std::vector<NodeView> look(Clock::time_point now, const std::vector<NodeView>& nodes);

  // Nobody needs to know any more what became of that node.
  void forget(int64_t ticket) { nodes_.erase(ticket); }

  // All nodes, by ticket.
  const std::map<int64_t, Node>& nodes() const { return nodes_; }
  bool is_lost(int64_t ticket) const { return nodes_.at(ticket).lost; }

  // Returns a member's report of the round, if there is one. A launcher that received a signal before the round, or
  // before it knew of the round, does not run it: its report is kInterrupted.
  std::optional<NodeReport> report(int64_t ticket, int64_t round) const;

  // Returns whether all nodes except `own` have seen the end of the job or are lost.
  bool others_left(int64_t own) const;

 private:
  const std::chrono::milliseconds silence_;
  std::map<int64_t, Node> nodes_;  // without those that were forgotten
};

// How long the group waits for nodes.
struct GroupTimeouts {
  std::chrono::milliseconds join{600'000};  // for a round to become complete
  // For more than the minimum of nodes, before the first round. In a round, newcomers wait as long for the ranks.
  std::chrono::milliseconds last_call{30'000};
  std::chrono::milliseconds silence{10'000};  // until a node without a heartbeat is lost
};

// The node's place in a round.
Member member_of(const NodeDescription& node, int64_t ticket, int64_t node_rank);

// Candidates for the next round.
struct Applicants {
  std::vector<NodeView> nodes = {};     // by ticket
  std::vector<Member> before = {};      // members of the previous round
  std::chrono::milliseconds enough{0};  // how long enough() has been true
};

// The rules by which nodes make up a round.
class Membership {
 public:
  virtual ~Membership() = default;

  // Whether nodes come and go as they like: a node may leave, and others may join a running job.
  virtual bool elastic() const = 0;

  // Whether the job outlives a lost node: it continues without it, or waits for another one in its place.
  virtual bool survives_losses() const = 0;

  // Explains to users why these nodes can never form the first round together. Empty if they can.
  virtual std::string conflict(const Applicants& applicants) const = 0;

  // Whether the nodes suffice for a round.
  virtual bool enough(const Applicants& applicants) const = 0;

  // Returns the round's members in the order of their ranks. Empty until the round is complete.
  virtual std::vector<Member> form(const Applicants& applicants) const = 0;

  // Explains to users what the round is waiting for.
  virtual std::string missing(const Applicants& applicants) const = 0;
};

// Creates the rules for settings.backend, kStaticBackend or kElasticBackend.
std::unique_ptr<Membership> make_membership(const GroupSettings& settings, const GroupTimeouts& timeouts);

}  // namespace narrowcast::launcher
