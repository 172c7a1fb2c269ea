// How the ranks of a job find each other: through a key-value store that rank 0 or the launcher serves.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <narrowcast/worker_env.h>

namespace narrowcast::rendezvous {

// A store may outlive the processes that used it: torchrun's agent serves one store for all restarts of a job, and the
// restart count that it tells workers neither changes whenever they are restarted nor is equal on all nodes. So ranks
// do not trust what they find, and a roll call makes sure that the ranks that meet in a store are processes of one
// attempt. Rank 0 draws a random name for the attempt and publishes it. Every rank writes a number it has drawn below
// that name. When all have, rank 0 publishes all numbers. A rank that finds its own number among them knows that rank 0
// is alive with it; one that does not has read the name of an earlier attempt, and looks again.
struct RollCall {
  int64_t rank = 0;
  int64_t world_size = 1;
  std::chrono::steady_clock::time_point deadline;
};

// Returns when all ranks have called it with the same `store`, with a store for the keys of this attempt alone. Throws
// c10::DistStoreError naming the ranks that have not come by the deadline.
c10::intrusive_ptr<c10d::Store> call_roll(const c10::intrusive_ptr<c10d::Store>& store, const RollCall& call);

// What join_job_store needs to know beside the rank's place.
struct JobStoreOptions {
  std::chrono::milliseconds timeout;  // of all that joining takes, and of waiting for a key later
  std::string interface;              // where rank 0 serves if MASTER_ADDR is no address of its machine; or empty
};

// Joins the job's other ranks and returns a store for their keys alone: what an earlier attempt of the same job left
// in a store that outlives it is not seen. Rank 0 serves, unless use_agent_store says that the launcher does: at
// 127.0.0.1 if all ranks are on its node, else at MASTER_ADDR, at that one address only. The store of a world of one
// is in memory.
//
// Throws c10::DistBackendError "rank R: ..." if rank 0 cannot serve there, the store cannot be reached, or a rank does
// not come in time, naming address and port or the ranks; c10::ValueError for an interface that does not exist.
c10::intrusive_ptr<c10d::Store> join_job_store(const WorkerEnv& env, const JobStoreOptions& options);

}  // namespace narrowcast::rendezvous
