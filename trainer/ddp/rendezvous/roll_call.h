// Makes sure that the ranks that meet in a store are processes of one attempt.
//
// A store may outlive the processes that used it: torchrun's agent serves one store for all restarts of a job, and the
// restart count that it tells workers neither changes whenever they are restarted nor is equal on all nodes. So ranks
// do not trust what they find. Rank 0 draws a random name for the attempt and publishes it. Every rank writes a number
// it has drawn below that name. When all have, rank 0 publishes all numbers. A rank that finds its own number among
// them knows that rank 0 is alive with it; one that does not has read the name of an earlier attempt, and looks again.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace narrowcast::rendezvous {

struct RollCall {
  int64_t rank = 0;
  int64_t world_size = 1;
  std::chrono::steady_clock::time_point deadline;
};

// Returns when all ranks have called it with the same `store`, with a store for the keys of this attempt alone. Throws
// c10::DistStoreError naming the ranks that have not come by the deadline.
c10::intrusive_ptr<c10d::Store> call_roll(const c10::intrusive_ptr<c10d::Store>& store, const RollCall& call);

}  // namespace narrowcast::rendezvous
