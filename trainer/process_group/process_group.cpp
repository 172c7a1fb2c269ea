#include "trainer/process_group/process_group.h"

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "trainer/process_group/backends.h"
#include "trainer/process_group/network_errors.h"

namespace narrowcast {
namespace {

c10::intrusive_ptr<c10d::Store> connect_store(const WorkerEnv& env, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(env.master_port);
  options.isServer = env.rank == 0 && !env.use_agent_store;
  options.waitWorkers = !env.use_agent_store;
  options.timeout = timeout;
  if (!env.use_agent_store) {
    options.numWorkers = static_cast<size_t>(env.world_size);
  }
  const char* const step = options.isServer ? "serving the store at " : "reaching the store at ";
  return with_network_errors(env.rank, absl::StrCat(step, env.master_addr, ":", env.master_port),
                             [&] { return c10::make_intrusive<c10d::TCPStore>(env.master_addr, options); });
}

c10::intrusive_ptr<c10d::Store> make_store(const WorkerEnv& env, std::chrono::milliseconds timeout) {
  if (env.world_size == 1) {
    return c10::make_intrusive<c10d::HashStore>();
  }
  const std::string prefix = absl::StrCat("narrowcast/", env.run_id, "/", env.restart_count, "/");
  auto store = c10::make_intrusive<c10d::PrefixStore>(prefix, connect_store(env, timeout));
  store->setTimeout(timeout);
  return store;
}

void check_options(const ProcessGroupOptions& options) {
  TORCH_CHECK_VALUE(options.backend == "gloo" || options.backend == "nccl", "backend '", options.backend,
                    "' is not known; known are gloo and nccl");
  TORCH_CHECK_VALUE(options.timeout.count() > 0, "timeout of ", options.timeout.count(), " ms must be greater than 0");
  TORCH_CHECK_VALUE(!options.group_name.empty(), "group_name must not be empty");
}

GroupBackend create_backend(const c10::intrusive_ptr<c10d::Store>& store, const WorkerEnv& env,
                            const ProcessGroupOptions& options) {
  return options.backend == "nccl" ? create_nccl_backend(store, env, options)
                                   : create_gloo_backend(store, env, options);
}

}  // namespace

ProcessGroupPtr init_process_group(const WorkerEnv& env, const ProcessGroupOptions& options) {
  check_options(options);
  const auto store = make_store(env, options.timeout);
  const GroupBackend created = create_backend(store, env, options);
  auto group =
      c10::make_intrusive<c10d::ProcessGroup>(store, static_cast<int>(env.rank), static_cast<int>(env.world_size));
  group->setBackend(created.device, created.type, created.backend);
  group->setDefaultBackend(created.type);
  group->setGroupName(options.group_name);
  c10d::register_process_group(options.group_name, group);
  return group;
}

void shutdown_process_group(const std::string& group_name) {
  const auto group = c10d::resolve_process_group(group_name);
  c10d::unregister_process_group(group_name);
  if (group->getBackendName() == "nccl") {
    group->shutdown();
  }
}

ProcessGroupScope::ProcessGroupScope(const WorkerEnv& env, const ProcessGroupOptions& options)
    : group_(init_process_group(env, options)) {}

ProcessGroupScope::~ProcessGroupScope() {
  try {
    shutdown_process_group(group_->getGroupName());
  } catch (const c10::Error&) {
    // Shut down by hand before. Nothing is left to do, and a destructor has nobody to tell.
  }
}

}  // namespace narrowcast
