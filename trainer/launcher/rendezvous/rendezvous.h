// The seam between one node's launcher (agent.h) and the group of launchers it belongs to: on one node it is alone
// (job_rendezvous.h), else they agree through a store (store_rendezvous.h).
//
// A job runs in rounds. In each, all nodes start their workers together; a round ends on all nodes together, and then
// either another begins or the job is over.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trainer/base/network/addresses.h"
#include "trainer/launcher/group/group.h"

namespace narrowcast::launcher {

// What one node has to know of a round. The defaults are one node with one worker.
struct Round {
  std::string master_addr = network::kLoopback;  // where the job's store is
  int64_t master_port = 0;
  std::string run_id = {};  // the same for all workers of the job, different for each job
  int64_t node_rank = 0;    // among the nodes
  int64_t nodes = 1;
  int64_t first_rank = 0;       // the global rank of this node's first worker
  int64_t world_size = 1;       // workers on all nodes
  int64_t role_first_rank = 0;  // as first_rank and world_size, counting nodes with this one's role alone
  int64_t role_world_size = 1;
  int64_t restart_count = 0;  // how many rounds there were before
  int64_t max_restarts = 0;
};

// What a node is to do.
struct Directive {
  enum class Kind {
    kWait,  // the next round is not complete yet
    kRun,   // run the workers of `round`
    kStop,  // end the workers of the round, and report
    kOver,  // the job is over: `end` says how
  };
  Kind kind = Kind::kWait;
  Round round = {};
  std::optional<GroupEnd> end = {};  // kRun: of the round before, if there was one
  std::string note = {};             // kWait: what is waited for, in words for users; may be empty
};

// What a launcher asks its group and tells it.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  // What to do now. Never blocks.
  virtual Directive directive() = 0;

  // Tells the ranks that still run, on all nodes, that one of this node has ended well.
  virtual void rank_succeeded(int64_t rank) = 0;

  // Tells how this node's workers ended in the round that was run last, or, before the first, that the launcher was
  // interrupted. Never blocks.
  virtual void report(const NodeReport& report) = 0;

  // After kOver: whether nobody needs this launcher any more, so that it may end.
  virtual bool may_leave() = 0;

  // How many entries of the group's store proved to be of somebody else.
  virtual int64_t ignored_entries() const { return 0; }
};

}  // namespace narrowcast::launcher
