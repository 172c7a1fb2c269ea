// The process group of all ranks of a job.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "ops/export.h"
#include "trainer/worker_env.h"

namespace narrowcast {

using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

struct ProcessGroupOptions {
  std::string backend = "gloo";                                  // "gloo" for CPU tensors, "nccl" for CUDA tensors
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  // of the rendezvous and of every collective
  std::string interface = {};    // network interface for Gloo, e.g. "eth0"; empty: WorkerEnv::socket_interface, else
                                 // loopback for a job on one node, else the one that reaches MASTER_ADDR
  std::string group_name = "0";  // operators find the group by this name; "0" is also what PyTorch calls its own
};

// Joins all ranks of the job in a group and registers it by name. Each rank calls
// it once; it returns when all have.
//
// Rank 0 serves a key-value store at master_addr:master_port (with
// use_agent_store the launcher does), every rank publishes its own address there
// and connects to all others. Keys carry the run's id and the restart count, so
// that a restarted job never reads addresses of dead processes. A world of one
// keeps its store in memory and opens no port for it.
//
// Throws c10::ValueError for an unknown backend or one that this build lacks, a
// timeout that is not positive, or an unknown interface; c10::DistBackendError
// naming rank, address and port where the port is in use, the store cannot be
// reached or a rank does not join within the timeout.
NARROWCAST_EXPORT ProcessGroupPtr init_process_group(const WorkerEnv& env, const ProcessGroupOptions& options = {});

// Takes the group of that name out of the registry, so that its connections close
// when the last reference to it goes; throws c10::Error if there is none. Call it
// before main returns: what is still registered then closes among LibTorch's own
// statics, in no sure order.
NARROWCAST_EXPORT void shutdown_process_group(const std::string& group_name = "0");

// Owns the job's group from here to the end of a scope: init_process_group, then
// shutdown_process_group, also when an exception passes.
class NARROWCAST_EXPORT ProcessGroupScope {
 public:
  explicit ProcessGroupScope(const WorkerEnv& env, const ProcessGroupOptions& options = {});
  ~ProcessGroupScope();
  ProcessGroupScope(const ProcessGroupScope&) = delete;
  ProcessGroupScope& operator=(const ProcessGroupScope&) = delete;

  const ProcessGroupPtr& group() const { return group_; }

 private:
  ProcessGroupPtr group_;
};

}  // namespace narrowcast
