// The key-value store that launchers and workers of a job share, served by this process: where it listens, whether it
// can be reached, and what it holds.
#pragma once

#include <c10/util/Exception.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "trainer/base/network/tcp_store.h"

namespace narrowcast::launcher {

// Somebody listens there already.
class PortInUseError : public c10::ValueError {
  using ValueError::ValueError;
};

// How users gave an address and a port.
struct EndpointFlags {
  std::string address = "--master_addr";
  std::string port = "--master_port";
};

// Listens at `address`, a name or a number, and `port`; 0 is any free one. Throws c10::ValueError naming the flag of
// address or port where the address is another machine's or means all of this one's, or the port cannot be used,
// PortInUseError if that is why.
network::ListeningSocket open_store_socket(const std::string& address, int64_t port, const EndpointFlags& flags);

// Tries to connect once to each address of `host`, for at most `left` in all, shared among them, from which it takes
// the time that it needed. To look the name up takes as long as the machine's resolver does. Returns why it cannot,
// e.g. "Connection refused"; empty if it can.
std::string try_to_reach(const std::string& host, int64_t port, std::chrono::milliseconds& left);

// What all keys of launchers begin with; workers' keys do not.
inline constexpr const char* kLauncherKeys = "narrowcast-run/";

// Tells ranks that wait for others in `store`, the job's, that this one will not come any more.
void tell_ended_rank(c10d::Store& store, const std::string& run_id, int64_t rank);

// The store itself, for as long as this object lives.
class HostedStore {
 public:
  // What a connection to it may take.
  static constexpr std::chrono::milliseconds kPatience{5000};

  // Serves at once, on a thread of its own. Throws c10::ValueError, within kPatience beside the time that the resolver
  // takes, naming the address if this process cannot serve there, or not reach what it serves.
  HostedStore(const std::string& address, const network::ListeningSocket& socket);

  // Removes every key that workers left, so that those of the next round find an empty store: PyTorch's own workers do
  // not tell rounds apart, and would read addresses of processes that are gone.
  void forget_workers();

  // For this process's own requests.
  const network::TcpStorePtr& store() const { return store_; }

 private:
  network::TcpStorePtr store_;
};

}  // namespace narrowcast::launcher
