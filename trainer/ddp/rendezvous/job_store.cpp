#include "trainer/ddp/rendezvous/job_store.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <narrowcast/network_errors.h>
#include "trainer/base/addresses.h"
#include "trainer/base/job_keys.h"
#include "trainer/base/listening_socket.h"
#include "trainer/base/tcp_store.h"
#include "trainer/ddp/rendezvous/roll_call.h"

namespace narrowcast::rendezvous {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kLoopback = "127.0.0.1";

// Addresses of MASTER_ADDR. A name may be published only moments after its machine started.
std::vector<std::string> addresses_of_master(const WorkerEnv& env, Clock::time_point deadline) {
  std::vector<std::string> addresses = network::addresses_of_host(env.master_addr);
  while (addresses.empty() && Clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(100));
    addresses = network::addresses_of_host(env.master_addr);
  }
  TORCH_CHECK_WITH(DistNetworkError, !addresses.empty(), "the name cannot be resolved");
  return addresses;
}

bool names_loopback(const std::string& host) { return host == "localhost" || network::is_loopback_address(host); }

// Where rank 0 listens for ranks of other nodes.
std::string serving_address(const WorkerEnv& env, const JobStoreOptions& options, Clock::time_point deadline) {
  const std::vector<std::string> addresses = addresses_of_master(env, deadline);
  for (const std::string& address : addresses) {
    if (network::is_own_address(address) &&
        (!network::is_loopback_address(address) || names_loopback(env.master_addr))) {
      return address;
    }
  }
  TORCH_CHECK_WITH(DistNetworkError, !options.interface.empty(), "that is ", c10::Join(", ", addresses),
                   " here, where other nodes cannot reach rank 0: let MASTER_ADDR be an address of rank 0's machine, "
                   "or name the interface to serve at (--interface or GLOO_SOCKET_IFNAME)");
  return network::addresses_of_interface(options.interface)[0];
}

network::ListeningSocket listen_at(const std::string& address, int64_t port) {
  int error = 0;
  const network::AddressList found = network::find_addresses(address, error);
  TORCH_CHECK_WITH(DistNetworkError, found != nullptr, address, ": ", gai_strerror(error));
  auto socket = network::ListeningSocket::listen_at(found, port, error);
  TORCH_CHECK_WITH(DistNetworkError, socket.has_value(), "cannot listen at ", address, " port ", port, ": ",
                   error == EADDRNOTAVAIL ? "it is no address of this machine" : std::strerror(error));
  return *std::move(socket);
}

network::TcpStorePtr serve(const WorkerEnv& env, const JobStoreOptions& options, Clock::time_point deadline) {
  const std::string address = env.on_one_node() ? kLoopback : serving_address(env, options, deadline);
  const network::ListeningSocket socket = listen_at(address, env.master_port);
  return network::serve_tcp_store(address, socket, options.timeout);
}

network::TcpStorePtr reach(const WorkerEnv& env, const JobStoreOptions& options) {
  const bool served_at_loopback = env.on_one_node() && !env.use_agent_store;
  return network::reach_tcp_store(served_at_loopback ? kLoopback : env.master_addr, env.master_port, options.timeout);
}

}  // namespace

c10::intrusive_ptr<c10d::Store> join_job_store(const WorkerEnv& env, const JobStoreOptions& options) {
  if (env.world_size == 1) {
    return c10::make_intrusive<c10d::HashStore>();
  }
  const auto deadline = Clock::now() + options.timeout;
  const bool serves = env.rank == 0 && !env.use_agent_store;
  const std::string place = c10::str(env.master_addr, ":", env.master_port);
  const c10::intrusive_ptr<c10d::Store> everything =
      with_network_errors(env.rank, c10::str(serves ? "serving the store at " : "reaching the store at ", place),
                          [&] { return serves ? serve(env, options, deadline) : reach(env, options); });
  const auto of_run = c10::make_intrusive<c10d::PrefixStore>(job_prefix(env.run_id), everything);
  const auto store = with_network_errors(env.rank, c10::str("joining the job at ", place), [&] {
    return call_roll(of_run, {.rank = env.rank, .world_size = env.world_size, .deadline = deadline});
  });
  store->setTimeout(options.timeout);
  return store;
}

}  // namespace narrowcast::rendezvous
