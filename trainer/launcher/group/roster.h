// All launchers that ever came, and whether they still live.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "trainer/launcher/group/group.h"
#include "trainer/launcher/workers/worker_runner.h"

namespace narrowcast::launcher {

class Roster {
 public:
  struct Node {
    NodeView view;
    Clock::time_point came;
    Clock::time_point heard;  // when it last gave a sign of life
    bool lost = false;        // none for too long; for good
  };

  explicit Roster(std::chrono::milliseconds silence) : silence_(silence) {}

  // A look at all of them at `now`. Returns those that had not come before.
  std::vector<NodeView> look(Clock::time_point now, const std::vector<NodeView>& nodes);

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

}  // namespace narrowcast::launcher
