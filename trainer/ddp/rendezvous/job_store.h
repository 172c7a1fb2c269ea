// How the ranks of a job find each other: through a key-value store that rank 0 or the launcher serves.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <narrowcast/worker_env.h>

namespace narrowcast::rendezvous {

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
