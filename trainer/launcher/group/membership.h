// Who is there, and which nodes make up a round: the difference between --rdzv_backend=static and c10d.
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

// All launchers that ever came, and whether they still live.
class Roster {
 public:
  struct Node {
    NodeView view;
    Clock::time_point came;
    Clock::time_point heard;      // when it last gave a sign of life
    int64_t spoiled_by_then = 0;  // view.spoiled at that time
    bool lost = false;            // none for too long, or one that cannot be read; for good

    // Whether somebody has spoiled its signs of life since the last one.
    bool was_tampered_with() const { return view.spoiled > spoiled_by_then; }
  };

  // A node that gives no sign of life for longer than `silence` is lost.
  explicit Roster(std::chrono::milliseconds silence) : silence_(silence) {}

  // A look at all of them at `now`. Returns those that had not come before.
  std::vector<NodeView> look(Clock::time_point now, const std::vector<NodeView>& nodes);

  // All of them, by ticket.
  const std::map<int64_t, Node>& nodes() const { return nodes_; }
  bool is_lost(int64_t ticket) const { return nodes_.at(ticket).lost; }

  // What a member told of the round; none if nothing. One that was sent a signal before the round, or before it knew of
  // the round, has no part in it: interrupted.
  std::optional<NodeReport> report(int64_t ticket, int64_t round) const;

  // Whether all but the first, which asks, have seen the end of the job or are lost.
  bool others_left() const;

 private:
  const std::chrono::milliseconds silence_;
  std::map<int64_t, Node> nodes_;
};

// How long the group waits for nodes.
struct GroupTimeouts {
  std::chrono::milliseconds join{600'000};      // for a round to become complete
  std::chrono::milliseconds last_call{30'000};  // for more than the fewest nodes, before the first round
  std::chrono::milliseconds silence{10'000};    // until a node without a sign of life is given up
};

// Nodes that would take part in the next round, and what is known besides.
struct Applicants {
  std::vector<NodeView> nodes = {};     // by ticket
  std::vector<Member> before = {};      // the members of the round before
  std::chrono::milliseconds enough{0};  // how long there have been enough() nodes
};

// The rules by which nodes make up a round.
class Membership {
 public:
  virtual ~Membership() = default;

  // Whether a job goes on without a node that it lost, and nodes may join it while it runs.
  virtual bool elastic() const = 0;

  // Why these nodes can never make up a round together, in words for users; empty if they may.
  virtual std::string conflict(const Applicants& applicants) const = 0;

  // Whether there are enough of them for a round.
  virtual bool enough(const Applicants& applicants) const = 0;

  // The round's members in the order of their ranks; empty as long as it is not complete.
  virtual std::vector<Member> form(const Applicants& applicants) const = 0;

  // What is missing, in words for users.
  virtual std::string missing(const Applicants& applicants) const = 0;
};

// For settings.backend kStaticBackend or kElasticBackend.
std::unique_ptr<Membership> make_membership(const GroupSettings& settings, const GroupTimeouts& timeouts);

}  // namespace narrowcast::launcher
