// The only file that includes ProcessGroupGloo.hpp, which is slow to parse and
// needs Gloo's own headers.
#include <absl/strings/str_cat.h>
#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "trainer/process_group/backends.h"
#include "trainer/process_group/network_errors.h"

namespace narrowcast {
namespace {

struct AddressesDeleter {
  void operator()(addrinfo* addresses) const { freeaddrinfo(addresses); }
};
using Addresses = std::unique_ptr<addrinfo, AddressesDeleter>;

Addresses resolve(const WorkerEnv& env) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(env.master_addr.c_str(), std::to_string(env.master_port).c_str(), &hints, &found);
  TORCH_CHECK_WITH(DistBackendError, error == 0, "rank ", env.rank, ": cannot resolve MASTER_ADDR=", env.master_addr,
                   ": ", gai_strerror(error));
  return Addresses(found);
}

// The address from which this node reaches `target`: connecting a datagram socket
// sends nothing, but makes the kernel choose the route. Empty without a route.
std::string source_address(const addrinfo& target) {
  const int descriptor = socket(target.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  auto* const address = reinterpret_cast<sockaddr*>(&own);
  std::array<char, NI_MAXHOST> text{};
  const bool known = descriptor >= 0 && connect(descriptor, target.ai_addr, target.ai_addrlen) == 0 &&
                     getsockname(descriptor, address, &length) == 0 &&
                     getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0;
  if (descriptor >= 0) {
    close(descriptor);
  }
  return known ? text.data() : "";
}

// Other nodes can reach this one where it reaches the master. Its host name would
// be the usual guess, but often resolves to a loopback address.
std::string address_towards_master(const WorkerEnv& env) {
  const Addresses targets = resolve(env);
  for (const addrinfo* target = targets.get(); target != nullptr; target = target->ai_next) {
    const std::string address = source_address(*target);
    if (!address.empty()) {
      return address;
    }
  }
  TORCH_CHECK_WITH(DistBackendError, false, "rank ", env.rank, ": no route to MASTER_ADDR=", env.master_addr);
}

// Gloo writes to sockets whose peer may be gone, and SIGPIPE would end this process
// before the write's error can be reported. A program's own handler is left alone.
void let_broken_connections_be_errors() {
  struct sigaction current = {};
  if (::sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL) {
    std::signal(SIGPIPE, SIG_IGN);
  }
}

std::shared_ptr<gloo::transport::Device> create_device(const WorkerEnv& env, const ProcessGroupOptions& options) {
  let_broken_connections_be_errors();
  const std::string& interface = options.interface.empty() ? env.socket_interface : options.interface;
  if (!interface.empty()) {
    TORCH_CHECK_VALUE(if_nametoindex(interface.c_str()) != 0, "interface '", interface, "' does not exist");
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  }
  const std::string address = env.on_one_node() ? "127.0.0.1" : address_towards_master(env);
  return c10d::ProcessGroupGloo::createDeviceForHostname(address);
}

}  // namespace

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

}  // namespace narrowcast
