// The job's key-value store, served by this process for launchers and workers.
#pragma once

#include <c10/util/Exception.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "trainer/base/network/tcp_store.h"

namespace narrowcast::launcher {

// Another process already listens on the port.
class PortInUseError : public c10::ValueError {
  using ValueError::ValueError;
};

// The flags by which the user gave address and port, for messages.
struct EndpointFlags {
  std::string address = "--master_addr";
  std::string port = "--master_port";
};

// Listens at `address`, a host name or a numeric address, and `port`; 0 is any free port. Throws c10::ValueError naming
// the flag if the address belongs to another machine or means all addresses of this one, or if the port cannot be used.
// A port in use is a PortInUseError.
network::ListeningSocket open_store_socket(const std::string& address, int64_t port, const EndpointFlags& flags);

// The socket at which a launcher can serve the store later. Others may connect before: they wait for answers.
struct Standby {
  std::string address;
  network::ListeningSocket socket;
};

// Tries to connect once to each address of `host`. All attempts share `left`, from which the time spent is subtracted.
// The name lookup is not limited: it takes as long as the machine's resolver. Returns the reason of a failure, e.g.
// "Connection refused", which tells more than those of other addresses. Returns an empty text on success.
std::string try_to_reach(const std::string& host, int64_t port, std::chrono::milliseconds& left);

// Result of connecting once to each address of a host.
struct Reached {
  std::string reason = {};  // as of try_to_reach()
  bool is_free = false;     // nobody_listens()
};

// The same with more details.
Reached reach_each(const std::string& host, int64_t port, std::chrono::milliseconds& left);

// Whether surely nobody listens if the connections to all addresses of a host failed with these errnos. At least one is
// a refusal, and this machine has no way to the other addresses. A listener that is slow would let an attempt time out.
bool nobody_listens(const std::vector<int>& errors);

// Prefix of all keys of launchers. Workers' keys do not have it.
inline constexpr const char* kLauncherKeys = "narrowcast-run/";
// Prefix of those that lead launchers to another store (store_protocol.h).
inline constexpr const char* kMovedKeys = "narrowcast-run/moved/";

// Serves the store during its lifetime.
class HostedStore {
 public:
  // Timeout of a connection to the store.
  static constexpr std::chrono::milliseconds kPatience{5000};

  // Time for c10d to connect this process to its own store. c10d asks for the name of each address that it connects to,
  // which takes 5 to 10 s where the DNS server does not answer.
  static constexpr std::chrono::milliseconds kPatienceWithNames{30000};

  // Starts serving on a separate thread. Throws c10::ValueError naming the address if this process cannot serve there,
  // or cannot reach its own store. It takes at most kPatience plus the time of the name lookups.
  HostedStore(const std::string& address, const network::ListeningSocket& socket);

  // Removes all keys of workers, so that workers of the next round find an empty store. PyTorch's workers do not tell
  // rounds apart: they would read addresses of processes that are gone.
  void forget_workers();

  // Removes all keys of launchers. The one that leads them to another store is the last: until then nobody joins here.
  void forget_launchers();

  // For requests of this process.
  const network::TcpStorePtr& store() const { return store_; }

 private:
  network::TcpStorePtr store_;
};

// The store where the launchers of a job are to meet. If several launchers run there, the first one that listens serves
// it. Thread-safe.
class EndpointStore {
 public:
  EndpointStore(std::string address, int64_t port, EndpointFlags flags)
      : address_(std::move(address)), port_(port), flags_(std::move(flags)) {}

  // Serves the store during the lifetime of this object. Returns null if another process listens there. Throws what
  // open_store_socket and HostedStore throw.
  std::shared_ptr<HostedStore> serve();

  // The store, if this process serves it; else null.
  std::shared_ptr<HostedStore> served() const;

 private:
  const std::string address_;
  const int64_t port_;
  const EndpointFlags flags_;
  mutable std::mutex mutex_;
  std::shared_ptr<HostedStore> served_;
};

}  // namespace narrowcast::launcher
