#include <narrowcast/process_group.h>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <narrowcast/network_errors.h>
#include "ops/comm/groups/agree.h"
#include "ops/comm/groups/broken_groups.h"
#include "ops/comm/groups/group.h"
#include "ops/comm/node/find_nodes.h"
#include "trainer/base/network/addresses.h"
#include "trainer/base/network/answering_store.h"
#include "trainer/base/network/places.h"
#include "trainer/base/process/process_limits.h"
#include "trainer/ddp/backends/gloo_backend.h"
#include "trainer/ddp/backends/group_backend.h"
#include "trainer/ddp/backends/nccl_backend.h"
#include "trainer/ddp/process_group/change_watch.h"
#include "trainer/ddp/process_group/job_watch.h"
#include "trainer/ddp/rendezvous/gloo_listener.h"
#include "trainer/ddp/rendezvous/heartbeat_watch.h"
#include "trainer/ddp/rendezvous/rendezvous.h"

namespace narrowcast {
namespace {

// A group, and the store in which its ranks met.
struct JoinedGroup {
  ProcessGroupPtr group;
  std::shared_ptr<rendezvous::JobStore> job;
  std::shared_ptr<rendezvous::HeartbeatWatch> lives;  // finds silent ranks from before they met on; null: nobody does
};

// The heartbeat timeout; 0 (never) if it or the time-out of collectives is shorter than RankWatch::kLeastSilence.
std::chrono::milliseconds silence_of(const ProcessGroupOptions& options) {
  const std::chrono::milliseconds silence = std::min(options.silence, options.timeout);
  return silence < RankWatch::kLeastSilence ? std::chrono::milliseconds(0) : silence;
}

void check_options(const ProcessGroupOptions& options) {
  TORCH_CHECK_VALUE(is_known_backend(options.backend), "backend: unknown name '", options.backend,
                    "'; known: ", kGlooBackend, ", ", kNcclBackend);
  TORCH_CHECK_VALUE(options.timeout.count() > 0, "timeout of ", options.timeout.count(), " ms must be greater than 0");
  TORCH_CHECK_VALUE(options.silence.count() == 0 || options.silence >= RankWatch::kLeastSilence, "silence of ",
                    options.silence.count(), " ms must be 0 or at least ", RankWatch::kLeastSilence.count());
  TORCH_CHECK_VALUE(!options.group_name.empty(), "group_name must not be empty");
}

// About how many files a rank opens, as counted in training jobs of 1 to 6 ranks:
//  - every rank: the connection to the store and another connection of its RankWatch, with recovery in place also of
//    Heartbeats and HeartbeatWatch; Gloo's listening socket, epoll and pipe; a connection to each other rank;
//  - every rank: two files of the job at a time; one more connection to the store when a time-out is explained;
//  - every rank: the memory of its node, and a connection to each other rank of the node;
//  - the rank that serves the store: 10 for the server and its event loop, and its ends of each rank's three
//    connections.
// Files of NCCL are not counted.
int64_t open_files_needed(const WorkerEnv& env) {
  const int64_t for_its_node = env.local_world_size > 1 ? env.local_world_size : 0;
  const int64_t for_every_rank = (env.recovers_in_place ? 10 : 8) + env.world_size + for_its_node;
  const bool serves = env.rank == 0 && env.world_size > 1 && !env.use_agent_store;
  return for_every_rank + (serves ? 10 + 3 * env.world_size : 0);
}

// A library that runs out of files halfway gives another reason, or ends the process (Gloo does so in its own thread).
void check_open_files(const WorkerEnv& env) {
  const int64_t needed = open_files_needed(env);
  const int64_t left = network::open_files_left(needed);
  TORCH_CHECK_VALUE(left >= needed, "RLIMIT_NOFILE: at most ", network::open_file_limit(), " files may be open, ", left,
                    " more than now, but rank ", env.rank, " of ", env.world_size, " needs about ", needed,
                    " more; raise the limit (ulimit -n)");
}

// Ranks with different backends would wait for each other.
void compare_backends(const c10::intrusive_ptr<c10d::Store>& store, const WorkerEnv& env, const std::string& backend) {
  if (env.rank == 0) {
    store->set("backend", backend);
  }
  const std::string of_rank_0 =
      with_network_errors(env.rank, "comparing backends", [&] { return store->get_to_str("backend"); });
  TORCH_CHECK_VALUE(backend == of_rank_0, collectives::text_of_difference("backend", of_rank_0, env.rank, backend));
}

void add_backend(const ProcessGroupPtr& group, const GroupBackend& created) {
  const auto gpu = created.backend->getBoundDeviceId();
  group->setBackend(created.device, created.type, created.backend);
  created.backend->setBoundDeviceId(gpu);  // setBackend has replaced it by the group's, which is empty.
  group->setDefaultBackend(created.type);
}

constexpr std::chrono::milliseconds kBetweenLooks{50};

// Until the launcher has replaced a rank that was found silent: it first asks it for its stack.
constexpr std::chrono::milliseconds kUntilSilentIsReplaced{20000};

// Until an attempt to connect has ended that was given up.
constexpr std::chrono::milliseconds kUntilAttemptEnds{1000};

// How long a rank that could not join waits for the news that the job's ranks have changed. The launcher writes it when
// it has seen the end of a process. If a node is lost, the launchers notice it by their heartbeats.
std::chrono::milliseconds until_changed(const rendezvous::JobStore& job) {
  return job.env().node > 0 ? 2 * job.node_silence() : std::chrono::milliseconds(5000);
}

// The same for a rank that was found silent: it is replaced, or its node is lost.
std::chrono::milliseconds until_silent_is_replaced(const rendezvous::JobStore& job) {
  return std::max(kUntilSilentIsReplaced, until_changed(job));
}

// The group of the ranks that have met in `store`. Gloo finds the others by `gloo_keys`.
ProcessGroupPtr connect(const WorkerEnv& env, const ProcessGroupOptions& options,
                        const c10::intrusive_ptr<c10d::Store>& store,
                        const c10::intrusive_ptr<c10d::Store>& gloo_keys) {
  compare_backends(store, env, options.backend);
  auto group =
      c10::make_intrusive<c10d::ProcessGroup>(store, static_cast<int>(env.rank), static_cast<int>(env.world_size));
  add_backend(group, create_gloo_backend(gloo_keys, env, options));
  if (options.backend == kNcclBackend) {
    add_backend(group, create_nccl_backend(group, c10::make_intrusive<c10d::PrefixStore>("nccl", store), env, options));
  }
  return group;
}

// Makes the group's GPU current on this thread. The backend has done so on the thread on which it was created.
void use_gpu_of(const ProcessGroupPtr& group) {
  if (collectives::moves_tensors_on(at::kCUDA, group)) {
    c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(group->getBackend(at::kCUDA)->getBoundDeviceId().value());
  }
}

// As connect, but gives up when the job's ranks change: Gloo would wait for a long time for one that is gone. The
// attempt uses only keys of these ranks' attempt. If it does not end soon, its thread is left behind.
ProcessGroupPtr connect_unless_changed(const ProcessGroupOptions& options, const c10::intrusive_ptr<c10d::Store>& store,
                                       const std::shared_ptr<rendezvous::JobStore>& job) {
  const rendezvous::GlooListener listener(store);
  auto task = std::make_shared<std::packaged_task<ProcessGroupPtr()>>(
      [options, store, job, keys = listener.keys()] { return connect(job->env(), options, store, keys); });
  std::future<ProcessGroupPtr> connected = task->get_future();
  std::thread([task = std::move(task)]() mutable {
    (*task)();
    task.reset();
  }).detach();
  while (connected.wait_for(kBetweenLooks) != std::future_status::ready) {
    if (job->have_changed(std::chrono::milliseconds(0))) {
      for (auto left = kUntilAttemptEnds; left.count() > 0; left -= kBetweenLooks) {
        listener.end_waits(job->env().world_size);
        if (connected.wait_for(kBetweenLooks) == std::future_status::ready) {
          break;
        }
      }
      TORCH_CHECK_WITH(DistBackendError, false, "rank ", job->env().rank, ": ", rendezvous::kRanksHaveChanged);
    }
  }
  auto group = connected.get();
  use_gpu_of(group);
  return group;
}

// Returns nothing if this failed because the job's ranks have changed meanwhile, or work on without this one. Gloo's
// errors of connecting to a machine that is gone speak of time-outs, too: only those of the whole attempt are final.
// Ranks that are missing then are reported, and may be replaced.
std::optional<JoinedGroup> try_to_join(const ProcessGroupOptions& options,
                                       const std::shared_ptr<rendezvous::JobStore>& job) {
  const auto begin = std::chrono::steady_clock::now();
  const bool may_change = job->env().recovers_in_place && !rendezvous::is_alone(job->env());
  JoinedGroup joined = {.group = nullptr, .job = job, .lives = nullptr};
  if (const auto silence = silence_of(options); may_change && silence.count() > 0) {
    joined.lives = std::make_shared<rendezvous::HeartbeatWatch>(job, silence);
  }
  try {
    const auto store = job->join();
    joined.group = may_change
                       ? connect_unless_changed(options, store, job)
                       : connect(job->env(), options, store, c10::make_intrusive<c10d::PrefixStore>("gloo", store));
    job->end_joining();
    return joined;
  } catch (const c10::DistError& error) {
    if (job->waits_on()) {
      return std::nullopt;
    }
    const bool is_over = is_time_out(error) && std::chrono::steady_clock::now() - begin >= options.timeout;
    const auto patience = job->has_reported() ? until_silent_is_replaced(*job)
                          : is_over           ? std::chrono::milliseconds(0)
                                              : until_changed(*job);
    if (!job->have_changed(patience)) {
      throw;
    }
    return std::nullopt;
  }
}

// Asks the launcher to replace the process of a silent rank. Returns whether it did. The launcher's store may hang, or
// be gone like the rank: then it may move within the group's time-out.
bool replace_silent(const std::shared_ptr<rendezvous::JobStore>& job, int64_t rank, std::chrono::milliseconds timeout) {
  const bool may_move = !job->env().store_file.empty();
  const std::function<bool()> ask = [job, rank, may_move] {
    try {
      job->report_silent(rank);
    } catch (const c10::DistError&) {
      if (!may_move) {
        throw;
      }
    }
    return job->have_changed(until_silent_is_replaced(*job));
  };
  const std::chrono::milliseconds limit = 2 * until_silent_is_replaced(*job);
  return network::within(may_move ? std::max(limit, timeout) : limit, ask).value_or(false);
}

// Null for a group whose last reference is gone. c10d's registry holds groups weakly, and then contains only the name.
ProcessGroupPtr registered_group(const std::string& name) {
  try {
    return c10d::resolve_process_group(name);
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    if (message.find("has already been destroyed") == std::string::npos) {
      throw;
    }
    return nullptr;
  }
}

JoinedGroup join_process_group(const WorkerEnv& env, const ProcessGroupOptions& options) {
  check_options(options);
  check_gloo_backend();
  check_open_files(env);
  if (options.backend == kNcclBackend) {
    check_nccl_backend(env, options);
  }
  const std::string interface = socket_interface(env, options);
  if (!interface.empty()) {
    network::addresses_of_interface(interface);  // Throws if there is no such interface.
  }
  std::optional<JoinedGroup> joined;
  while (!joined.has_value()) {
    joined = try_to_join(
        options, std::make_shared<rendezvous::JobStore>(env, rendezvous::JobStoreOptions{options.timeout, interface}));
  }
  joined->group->setGroupName(options.group_name);
  c10d::register_process_group(options.group_name, joined->group);
  return *joined;
}

std::unique_ptr<JobWatch> watch_job(const JoinedGroup& joined, const ProcessGroupOptions& options) {
  JobWatch::Options watch = {.breaks_off = options.backend == kNcclBackend,
                             .silence = silence_of(options),
                             .on_silence = options.on_silence,
                             .rank_0_serves = !joined.job->env().use_agent_store};
  if (joined.job->env().recovers_in_place) {
    watch.replaces_silent = [job = joined.job, timeout = options.timeout](int64_t rank) {
      return replace_silent(job, rank, timeout);
    };
  }
  return std::make_unique<JobWatch>(joined.group, watch);
}

}  // namespace

ProcessGroupPtr init_process_group(const WorkerEnv& env, const ProcessGroupOptions& options) {
  return join_process_group(env, options).group;
}

void shutdown_process_group(const std::string& group_name) {
  const auto group = registered_group(group_name);
  c10d::unregister_process_group(group_name);
  if (group.defined() && group->getBackendName() == kNcclBackend) {
    group->shutdown();
  }
}

ProcessGroupScope::ProcessGroupScope(const WorkerEnv& env, const ProcessGroupOptions& options) {
  while (group_ == nullptr) {
    const JoinedGroup joined = join_process_group(env, options);
    auto unregister = c10::make_scope_exit([&] { c10d::unregister_process_group(options.group_name); });
    try {
      watch_ = joined.group->getSize() > 1 ? watch_job(joined, options) : nullptr;
    } catch (const c10::DistError&) {
      // A rank may have been lost, or the store may have moved, since the ranks met.
      if (!joined.job->have_changed(until_changed(*joined.job))) {
        throw;
      }
      continue;
    }
    unregister.release();
    group_ = joined.group;
    lives_ = joined.lives;
    env_ = joined.job->env();
    if (env_.recovers_in_place && !rendezvous::is_alone(env_)) {
      changes_ = std::make_unique<ChangeWatch>(joined.job, group_->getBackend(c10::DeviceType::CPU));
    }
  }
}

// A rank that has failed cannot wait for collectives that the others will never join. Ranks of its node may wait for it
// in the node's memory, which lives on while this process waits for a new group. Collectives of NCCL are broken off on
// this rank and, because this rank is gone, on all others.
ProcessGroupScope::~ProcessGroupScope() {
  lives_.reset();
  changes_.reset();
  watch_.reset();
  try {
    if (std::uncaught_exceptions() > 0) {
      node::leave_nodes(group_);
      collectives::break_off(group_, "this rank has failed");  // Unless it was done for a lost rank.
      c10d::unregister_process_group(group_->getGroupName());
    } else {
      shutdown_process_group(group_->getGroupName());
    }
  } catch (const c10::Error&) {
    // The program has shut the group down itself. A destructor cannot report errors.
  }
}

void ProcessGroupScope::throw_if_broken_off() const {
  if (watch_ != nullptr) {
    watch_->throw_if_broken_off();
  }
}

void ProcessGroupScope::throw_explained(const std::exception& error) const {
  if (watch_ != nullptr) {
    watch_->throw_explained(error);
  }
}

}  // namespace narrowcast
