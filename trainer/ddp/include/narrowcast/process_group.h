// The process group of all ranks of a job.
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <type_traits>
#include <utility>

#include <narrowcast/export.h>
#include <narrowcast/worker_env.h>

namespace narrowcast {
class JobWatch;
}

namespace NARROWCAST_EXPORT narrowcast {

// A group of ranks as c10d's functions take it.
using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

// How init_process_group connects the ranks.
struct ProcessGroupOptions {
  std::string backend = "gloo";                                  // "gloo" for CPU tensors, "nccl" for CUDA tensors too
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  // of the rendezvous and of every collective
  // After so long without a sign of its process a rank is lost, or after `timeout` if that is shorter (below 3 s:
  // by the time-out alone); 0: never.
  std::chrono::milliseconds silence = std::chrono::seconds(30);
  // With "gloo", whose waits nothing but a time-out ends: a ProcessGroupScope calls it once, on a thread of its own,
  // when a rank is lost so, with "rank R: rank L is lost: it has given no sign for 30 s". It should end the process.
  // Not given: such a rank is noticed by the time-out.
  std::function<void(const std::string& why)> on_silence = {};
  std::string interface = {};       // network interface, e.g. "eth0"; empty: WorkerEnv::socket_interface, else loopback
                                    // for a job on one node, else the one that reaches MASTER_ADDR (NCCL: its choice)
  std::optional<int64_t> gpu = {};  // of this rank, with "nccl"; none: the one whose number is the local rank
  std::string group_name = "0";     // operators find the group by this name; "0" is also what PyTorch calls its own
};

// Joins all ranks of the job in a group and registers it by name. Each rank calls
// it once; it returns when all have.
//
// Rank 0 serves a key-value store at master_port: at 127.0.0.1 if all ranks are on
// its node, else at master_addr (with use_agent_store the launcher serves). Every
// rank publishes its own address there and connects to all others. A restarted job
// never reads addresses of dead processes, also where the store outlived them. A
// world of one keeps its store in memory and opens no port for it.
//
// With "nccl" the group moves tensors on GPUs by NCCL and those on the CPU by Gloo, which also connects the ranks
// first: who cannot be reached is found out before NCCL is. Ranks may share a GPU. What NCCL must know it is told
// through this process's environment.
//
// Throws c10::ValueError for an unknown backend or one that this build lacks, a
// timeout that is not positive, a silence below 0 or, but for 0, 3 s, an unknown interface, a GLOO_DEVICE_TRANSPORT
// that does not work (TCP_TLS does not encrypt), a limit of open files (RLIMIT_NOFILE) that is too low for this rank,
// or another backend than rank 0's; c10::DistBackendError naming rank, address and port where the port is in use, the
// store cannot be reached or ranks, which it names, do not join within the timeout.
ProcessGroupPtr init_process_group(const WorkerEnv& env, const ProcessGroupOptions& options = {});

// Takes the group of that name out of the registry, so that its connections close when the last reference to it goes.
// That may have happened before: the registry itself keeps no group. Throws c10::Error if no group was registered under
// this name. Call it before main returns: what is still registered then closes among LibTorch's own statics, in no sure
// order.
void shutdown_process_group(const std::string& group_name = "0");

// Owns the job's group from here to the end of a scope: init_process_group, then
// shutdown_process_group. When an exception passes, NCCL's collectives are broken off
// instead of waited for: the other ranks may never join them. With "nccl" they are
// broken off as well when a rank is lost: as soon as its connections close, or after it
// has given no sign (ProcessGroupOptions::silence).
class ProcessGroupScope {
 public:
  // Joins the group as init_process_group does.
  explicit ProcessGroupScope(const WorkerEnv& env, const ProcessGroupOptions& options = {});
  ~ProcessGroupScope();
  ProcessGroupScope(const ProcessGroupScope&) = delete;
  ProcessGroupScope& operator=(const ProcessGroupScope&) = delete;

  // The job's group, never null.
  const ProcessGroupPtr& group() const { return group_; }

  // Returns body(), the work of the job. If a collective in it times out, the error
  // goes on to say what each other rank is doing, or that it does not answer. Once a
  // rank is lost, what CUDA, NCCL or the network make of it in body() is the
  // c10::DistBackendError "rank R: rank L is lost: REASON", and so is a return: what
  // broken off collectives have left behind is no result.
  template <class Body>
  decltype(auto) run(Body&& body) const {
    try {
      if constexpr (std::is_void_v<std::invoke_result_t<Body>>) {
        std::forward<Body>(body)();
        throw_if_broken_off();
      } else {
        decltype(auto) result = std::forward<Body>(body)();
        throw_if_broken_off();
        return result;
      }
    } catch (const std::exception& error) {
      throw_explained(error);
      throw;
    }
  }

 private:
  void throw_if_broken_off() const;
  void throw_explained(const std::exception& error) const;

  ProcessGroupPtr group_;
  std::unique_ptr<JobWatch> watch_;  // none in a world of one
};

}  // namespace narrowcast
