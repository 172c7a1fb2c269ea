// Which nodes make up a round: the difference between --rdzv_backend=static and c10d.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "trainer/launcher/group/group.h"

namespace narrowcast::launcher {

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

// For settings.backend "static" or "c10d".
std::unique_ptr<Membership> make_membership(const GroupSettings& settings, const GroupTimeouts& timeouts);

}  // namespace narrowcast::launcher
