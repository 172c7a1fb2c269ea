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
class ChangeWatch;
class JobWatch;
namespace rendezvous {
class HeartbeatWatch;
}
}  // namespace narrowcast

namespace NARROWCAST_EXPORT narrowcast {

// A group of ranks, as functions of c10d take it.
using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

// How init_process_group connects the ranks.
struct ProcessGroupOptions {
  std::string backend = "gloo";                                  // "gloo" for CPU tensors, "nccl" for CUDA tensors too
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  // of the rendezvous and of every collective
  // Heartbeat timeout: a rank whose process gives no sign for this long, or for `timeout` if that is shorter, is lost.
  // 0 turns it off. A `timeout` below 3 s turns it off as well: then only the time-out ends waits.
  std::chrono::milliseconds silence = std::chrono::seconds(30);
  // For "gloo", whose waits only a time-out ends. If a rank is lost by the heartbeat timeout, a ProcessGroupScope calls
  // this once, on a separate thread, with "rank R: rank L is lost: it has sent no heartbeat for 30 s". It should end
  // the process. If it is not given, such a rank is noticed only by the time-out.
  std::function<void(const std::string& why)> on_silence = {};
  std::string interface = {};       // network interface, e.g. "eth0"; empty: WorkerEnv::socket_interface, else loopback
                                    // for a job on one node, else the one that reaches MASTER_ADDR (NCCL: its choice)
  std::optional<int64_t> gpu = {};  // GPU of this rank, with "nccl"; default: the local rank's number
  std::string group_name = "0";     // operators find the group by this name; PyTorch's default group is "0" as well
};

// Joins all ranks of the job in a group and registers it by name. Each rank calls it once; it returns when all ranks
// have called it.
//
// Rank 0 serves a key-value store at master_port: at 127.0.0.1 if all ranks are on its node, else at master_addr. With
// use_agent_store the launcher serves it. Every rank publishes its address there and connects to all others. A
// restarted job never reads addresses of dead processes, even if the store outlived them. A world of one keeps its
// store in memory and opens no port for it.
//
// With "nccl" the group moves tensors on GPUs by NCCL and tensors on the CPU by Gloo. Gloo connects the ranks first, so
// that unreachable ranks are reported before NCCL starts. Ranks may share a GPU. NCCL is configured through environment
// variables of this process.
//
// Throws c10::ValueError for
//   - an unknown backend, one that this build lacks, or another backend than rank 0's;
//   - a timeout that is not positive, or a silence below 3 s other than 0;
//   - an unknown interface;
//   - a GLOO_DEVICE_TRANSPORT that does not work (TCP_TLS does not encrypt);
//   - a limit of open files (RLIMIT_NOFILE) that is too low for this rank.
// Throws c10::DistBackendError naming rank, address and port if the port is in use or the store cannot be reached, and
// naming ranks that do not join within the timeout.
ProcessGroupPtr init_process_group(const WorkerEnv& env, const ProcessGroupOptions& options = {});

// Removes the group of that name from the registry, which itself keeps no reference to it. The group's connections
// close when its last reference is dropped, which may have happened before this call. Throws c10::Error if no group was
// registered under this name. Call it before main returns: a group that is still registered then closes during the
// destruction of LibTorch's statics, in no defined order.
void shutdown_process_group(const std::string& group_name = "0");

// Owns the job's group until the end of a scope: init_process_group, then shutdown_process_group. When an exception
// passes, NCCL's collectives are aborted instead of waited for, because other ranks may never join them. With "nccl"
// they are also aborted when a rank is lost: as soon as its connections close, or after the heartbeat timeout
// (ProcessGroupOptions::silence).
class ProcessGroupScope {
 public:
  // Joins the group as init_process_group does.
  explicit ProcessGroupScope(const WorkerEnv& env, const ProcessGroupOptions& options = {});
  ~ProcessGroupScope();
  ProcessGroupScope(const ProcessGroupScope&) = delete;
  ProcessGroupScope& operator=(const ProcessGroupScope&) = delete;

  // The job's group, never null.
  const ProcessGroupPtr& group() const { return group_; }

  // The environment with this process's place in the group. With WorkerEnv::node, rank and world size may differ from
  // those that the launcher gave the process when it started.
  const WorkerEnv& env() const { return env_; }

  // Returns body(), the work of the job. If a collective in it times out, the error also lists what each other rank is
  // doing, or that the rank does not answer. If a rank is lost and body() fails with an error of CUDA, NCCL or the
  // network, that error becomes the c10::DistBackendError "rank R: rank L is lost: REASON". If collectives were
  // aborted, a return of body() becomes the same error, since their results are not valid.
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
  friend bool has_newcomers(const ProcessGroupScope& scope);
  friend void keep_newcomers_out(const ProcessGroupScope& scope);
  friend void let_ranks_divide(const ProcessGroupScope& scope, int64_t number);

  void throw_if_broken_off() const;
  void throw_explained(const std::exception& error) const;

  ProcessGroupPtr group_;
  WorkerEnv env_;
  std::unique_ptr<JobWatch> watch_;                    // none in a world of one
  std::unique_ptr<ChangeWatch> changes_;               // none without recovery in place
  std::shared_ptr<rendezvous::HeartbeatWatch> lives_;  // the same
};

}  // namespace narrowcast
