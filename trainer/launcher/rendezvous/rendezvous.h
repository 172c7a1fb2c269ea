// The interface between one node's launcher (agent.h) and its group of launchers. On one node the launcher is alone
// (job_rendezvous.h), otherwise the launchers agree through a store (store_rendezvous.h).
//
// A job runs in rounds. In each, all nodes start their workers together, and the round ends on all nodes together. Then
// either another round begins or the job is over.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "trainer/base/network/addresses.h"
#include "trainer/launcher/group/group.h"
#include "trainer/launcher/store/worker_entries.h"

namespace narrowcast::launcher {

// A node's view of a round. The defaults are one node with one worker.
struct Round {
  std::string master_addr = network::kLoopback;  // address of the job's store
  int64_t master_port = 0;
  std::string run_id = {};  // equal for all workers of a job, different for each job
  int64_t node_rank = 0;    // from 0 to nodes - 1
  int64_t nodes = 1;
  int64_t first_rank = 0;       // the global rank of this node's first worker
  int64_t world_size = 1;       // workers on all nodes
  int64_t role_first_rank = 0;  // like first_rank and world_size, among nodes with this role
  int64_t role_world_size = 1;
  int64_t restart_count = 0;  // number of previous rounds
  int64_t node = 0;           // names this node among the job's nodes, also in places.h; 0: it is alone
  // Recovery in place: Decision::changes, losses and change.
  int64_t changes = 0;
  int64_t losses = 0;
  std::string change = {};
  int64_t max_restarts = 0;
};

// An instruction for a node.
struct Directive {
  enum class Kind {
    kWait,  // the next round is not complete yet
    kRun,   // run the workers of `round`. They go on if it runs already, but its nodes have changed in place.
    kStop,  // end the workers of the round, and report
    kOver,  // the job is over, with `end`
  };
  Kind kind = Kind::kWait;
  Round round = {};
  bool awaits_report = false;        // kStop: the group waits for this node's report of `round`
  std::optional<GroupEnd> end = {};  // kRun: end of the previous round, if any; kOver: end of the job
  std::string note = {};             // kWait, kRun: text for users about what this node, or others, wait for; or empty
};

// A launcher's connection to its group.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  // Returns the current instruction. Never blocks.
  virtual Directive directive() = 0;

  // Announces to the ranks that still run, on all nodes, that a rank of this node has ended successfully.
  virtual void rank_succeeded(const RankOfNode& rank) = 0;

  // Announces to the ranks of the round, on all nodes, that a process is about to take the place of `rank`, which is
  // one of this node. Never blocks.
  virtual void announce_start(const RankOfNode& rank) = 0;

  // Returns the number of processes that have taken another's place in this round, with the announced one, once its
  // announcement is in the store. Never blocks.
  virtual std::optional<int64_t> announced_start(const RankOfNode& rank) = 0;

  // Returns which of this node's `ranks` other ranks have found silent. Never blocks: the answer may be older than the
  // question.
  virtual SilentRanks silent_ranks(const std::set<RankOfNode>& ranks) = 0;

  // Reports the end of this node's workers in the last round. Before the first round it reports that the launcher was
  // interrupted. Never blocks.
  virtual void report(const NodeReport& report) = 0;

  // Returns, after kOver, whether the launcher may exit because no other launcher needs it.
  virtual bool may_leave() = 0;

  // Number of ignored entries in the group's store, which others have written.
  virtual int64_t ignored_entries() const { return 0; }
};

}  // namespace narrowcast::launcher
