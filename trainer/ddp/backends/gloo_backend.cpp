// One of two files that include ProcessGroupGloo.hpp, which is slow to parse and needs Gloo's headers.
#include "trainer/ddp/backends/gloo_backend.h"

#include <c10/util/Exception.h>

#include <csignal>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include <narrowcast/network_errors.h>
#include "ops/comm/connections/group/connections.h"
#include "ops/common/batch_scheduling.h"
#include "trainer/base/network/addresses.h"

namespace narrowcast {
namespace {

// Other nodes can reach this node at the address from which it reaches the master. Its host name, the usual guess,
// often resolves to a loopback address.
std::string address_towards_master(const WorkerEnv& env) {
  const std::string address = network::address_towards(env.master_addr);
  TORCH_CHECK_WITH(DistBackendError, !address.empty(), "rank ", env.rank,
                   ": no route to MASTER_ADDR=", env.master_addr);
  return address;
}

// Gloo writes to sockets whose peer may be gone, and SIGPIPE would end this process before the write's error can be
// reported. A handler that the program has installed is not changed.
void let_broken_connections_be_errors() {
  struct sigaction current = {};
  if (::sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL) {
    std::signal(SIGPIPE, SIG_IGN);
  }
}

std::shared_ptr<gloo::transport::Device> create_device(const WorkerEnv& env, const ProcessGroupOptions& options) {
  let_broken_connections_be_errors();
  const BatchScheduling batch_scheduling;
  const std::string interface = socket_interface(env, options);
  if (!interface.empty()) {
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  }
  const std::string address = env.on_one_node() ? network::kLoopback : address_towards_master(env);
  return c10d::ProcessGroupGloo::createDeviceForHostname(address);
}

using WeakBackend = c10::weak_intrusive_ptr<c10d::Backend>;

// The second backend of a pair is closed with the first one.
struct Companions {
  std::mutex mutex;
  std::vector<std::pair<WeakBackend, WeakBackend>> pairs;
};

// Never destroyed: a watch's thread may be left behind, and run while static objects are destroyed.
Companions& companions() {
  static Companions& instance = *std::make_unique<Companions>().release();
  return instance;
}

std::vector<c10::intrusive_ptr<c10d::Backend>> closed_with(const c10d::Backend& backend) {
  const std::lock_guard lock(companions().mutex);
  auto& pairs = companions().pairs;
  std::erase_if(pairs, [](const auto& pair) { return pair.first.expired() || pair.second.expired(); });
  std::vector<c10::intrusive_ptr<c10d::Backend>> others;
  for (const auto& [first, second] : pairs) {
    if (first._unsafe_get_target() == &backend) {
      if (auto other = second.lock(); other != nullptr) others.push_back(std::move(other));
    }
  }
  return others;
}

}  // namespace

// LibTorch itself reads this variable when it creates Gloo's device. TCP and LINUX are names of the one transport that
// works. TCP_TLS reads certificates, and then connects by functions of TCP, which encrypt nothing. Later versions of
// LibTorch lack it.
void check_gloo_backend() {
  constexpr const char* kTransport = "GLOO_DEVICE_TRANSPORT";
  const EnvironmentVariables variables = process_environment();
  const auto found = variables.find(kTransport);
  if (found == variables.end() || found->second == "TCP" || found->second == "LINUX") {
    return;
  }
  TORCH_CHECK_VALUE(found->second != "TCP_TLS", kTransport, "=TCP_TLS: LibTorch's Gloo would send everything in plain ",
                    "text nevertheless; unset it, and encrypt the network instead (docs/explain/security.md)");
  TORCH_CHECK_VALUE(false, kTransport, "='", found->second,
                    "' is not a transport of this LibTorch's Gloo; unset it, or set it to TCP");
}

GroupBackend create_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, const WorkerEnv& env,
                                 const ProcessGroupOptions& options) {
  auto gloo_options = c10d::ProcessGroupGloo::Options::create(options.timeout);
  gloo_options->group_name = options.group_name;
  gloo_options->devices.push_back(create_device(env, options));
  auto backend = with_network_errors(env.rank, "connecting to all ranks", [&] {
    return c10::make_intrusive<c10d::ProcessGroupGloo>(store, static_cast<int>(env.rank),
                                                       static_cast<int>(env.world_size), gloo_options);
  });
  return {c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, std::move(backend)};
}

void close_gloo_connections(c10d::Backend& backend) {
  connections::close_connections(backend);
  for (const auto& other : closed_with(backend)) connections::close_connections(*other);
}

void close_together(const c10::intrusive_ptr<c10d::Backend>& backend, const c10::intrusive_ptr<c10d::Backend>& other) {
  const std::lock_guard lock(companions().mutex);
  companions().pairs.push_back({WeakBackend(backend), WeakBackend(other)});
}

}  // namespace narrowcast
