// Connects the ranks of a job through a key-value store, which rank 0 or the launcher serves.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <narrowcast/worker_env.h>

namespace narrowcast::rendezvous {

// A store may outlive the processes that used it: torchrun's agent serves one store for all restarts of a job. The
// restart count that it passes to workers does not change at every restart and may differ between nodes. So ranks do
// not trust the store's content: a roll call ensures that all ranks that meet in a store belong to one attempt.
//   - Rank 0 draws a random name for the attempt and publishes it.
//   - Every rank draws a random number and writes it below that name.
//   - When all have, rank 0 publishes all numbers.
// A rank that finds its number among them knows that rank 0 is alive with it. A rank that does not has read the name of
// an earlier attempt, and reads again.
struct RollCall {
  int64_t rank = 0;
  int64_t world_size = 1;
  std::chrono::steady_clock::time_point deadline;
};

// Returns when all ranks have called it with the same `store`; the result is a store for keys of this attempt only.
// Throws c10::DistStoreError naming the ranks that have not called it by the deadline.
c10::intrusive_ptr<c10d::Store> call_roll(const c10::intrusive_ptr<c10d::Store>& store, const RollCall& call);

// Options of join_job_store.
struct JobStoreOptions {
  std::chrono::milliseconds timeout;  // of joining as a whole, and of waiting for a key later
  std::string interface;              // where rank 0 serves if MASTER_ADDR is not an address of its machine; or empty
};

// Joins the job's other ranks and returns a store for their keys only: keys of earlier attempts, in a store that
// outlived them, are not visible. Rank 0 serves, or the launcher if use_agent_store is set. Rank 0 serves at 127.0.0.1
// if all ranks are on its node, else at MASTER_ADDR, and only at that address. The store of a world of one is in
// memory.
//
// Throws c10::DistBackendError "rank R: ..." naming address and port if rank 0 cannot serve there or the store cannot
// be reached, or naming the ranks that do not come in time. Throws c10::ValueError for an interface that does not
// exist.
c10::intrusive_ptr<c10d::Store> join_job_store(const WorkerEnv& env, const JobStoreOptions& options);

}  // namespace narrowcast::rendezvous
