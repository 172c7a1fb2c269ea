// c10d's TCPStore, the key-value store of a job, at an address of our choice: the socket at which it is served, and the
// keys that both launchers and workers know.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "ops/common/file_descriptor.h"
#include "trainer/base/network/addresses.h"

namespace narrowcast::network {

// A TCP socket that waits for connections at one address of this machine, and at no other.
class ListeningSocket {
 public:
  // Port 0 is any free one. Where it cannot listen the result is empty, and `error`, a value of errno, says why: most
  // often EADDRINUSE, somebody listens there already, or EADDRNOTAVAIL, the address is another machine's.
  static std::optional<ListeningSocket> listen_at(const SocketAddress& address, int& error);

  // Listens at the first of a host's `addresses` where it can. `error` is EADDRNOTAVAIL only if all of them are
  // another machine's.
  static std::optional<ListeningSocket> listen_at(const AddressList& addresses, int64_t port, int& error);

  int64_t port() const { return port_; }

  // Another descriptor of the same socket, which the caller owns; closing it leaves this one listening.
  // Throws c10::Error.
  int duplicate() const;

 private:
  ListeningSocket(FileDescriptor socket, int64_t port) : socket_(std::move(socket)), port_(port) {}

  FileDescriptor socket_;
  int64_t port_;
};

using TcpStorePtr = c10::intrusive_ptr<c10d::TCPStore>;

// Serves a store on `socket`, which listens at `address`, a name or a number, on a thread of its own until the result
// goes, which is also the store's first client. (Left to make a socket, c10d would listen at all addresses of the
// machine.) `timeout`: of connecting to it, and of waiting for a key later. Throws c10::Error if it cannot be reached.
TcpStorePtr serve_tcp_store(const std::string& address, const ListeningSocket& socket,
                            std::chrono::milliseconds timeout);

// A client of the store that is served at `host`, a name or a number, and `port`. Tries again until `timeout`, which is
// also that of waiting for a key later, and throws c10::Error then. A server that takes the connection and does not
// speak as a store does, another service or a process that is stopped, is a c10::DistNetworkError, 1 s later at most.
TcpStorePtr reach_tcp_store(const std::string& host, int64_t port, std::chrono::milliseconds timeout);

}  // namespace narrowcast::network

namespace narrowcast::rendezvous {

// What the keys of the job's ranks begin with, before a slash.
inline std::string job_prefix(const std::string& run_id) { return "narrowcast/" + run_id; }

// The rank whose process ended last, with success, while others ran, in decimal; below job_prefix(). narrowcast-run
// writes it, and removes it before it starts the ranks again. Ranks that wait for others know by it that they wait in
// vain.
inline constexpr const char* kEndedRank = "ended_rank";

}  // namespace narrowcast::rendezvous
