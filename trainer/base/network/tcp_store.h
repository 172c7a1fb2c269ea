// c10d's TCPStore, the key-value store of a job, at a chosen address: its listening socket, and the keys that launchers
// and workers share.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "ops/common/file_descriptor.h"
#include "trainer/base/network/addresses.h"

namespace narrowcast::network {

// A TCP socket that waits for connections at exactly one address of this machine.
class ListeningSocket {
 public:
  // Port 0 is any free one. If it cannot listen, the result is empty and `error` is set to an errno: most often
  // EADDRINUSE (somebody listens there already) or EADDRNOTAVAIL (the address belongs to another machine).
  static std::optional<ListeningSocket> listen_at(const SocketAddress& address, int& error);

  // Listens at the first of a host's `addresses` that allows it, unless somebody listens at one before. `error` is
  // EADDRNOTAVAIL only if all addresses belong to other machines.
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

// Serves a store on `socket`, which listens at `address`, a name or a number. A separate thread serves until the result
// is destroyed; the result is also the store's first client. (If c10d created the socket, it would listen at all
// addresses of the machine.) `timeout` applies to connecting and to later waits for keys. Throws c10::Error if the
// store cannot be reached.
TcpStorePtr serve_tcp_store(const std::string& address, const ListeningSocket& socket,
                            std::chrono::milliseconds timeout);

// A client of the store that is served at `host`, a name or a number, and `port`. It retries until `timeout`, which
// also applies to later waits for keys, and then throws c10::Error. If a server accepts the connection but does not
// answer as a store (another service, or a stopped process), it throws c10::DistNetworkError at most 1 s later. It also
// does about 100 ms after gives_up() has become true.
TcpStorePtr reach_tcp_store(const std::string& host, int64_t port, std::chrono::milliseconds timeout,
                            const std::function<bool()>& gives_up = nullptr);

// The value of a key of any store; nothing if the key does not exist, or has the value "none". Never waits for the key,
// and writes nothing.
std::optional<std::string> value_of(c10d::Store& store, const std::string& key);

}  // namespace narrowcast::network

namespace narrowcast::rendezvous {

// The prefix of the keys of the job's ranks, before a slash.
inline std::string job_prefix(const std::string& run_id) { return "narrowcast/" + run_id; }

// The rank whose process ended last, with success, while others ran, as RankOfNode (places.h); below job_prefix().
// narrowcast-run writes it, and removes it before it starts the ranks again. From it, ranks that wait for others learn
// that they wait in vain. The ranks of a node that joins count only once they have met the others.
inline constexpr const char* kEndedRank = "ended_rank";

// Recovery in place: how many processes have taken the place of another one since the ranks were last started together,
// and how many nodes were lost (places.h), in decimal; below job_prefix(). Without the key there were none.
// narrowcast-run adds 1 before it starts such a process. From it, ranks learn that a process for which they wait may be
// gone.
inline constexpr const char* kStarts = "starts";

// Recovery in place: keys of a process; below job_prefix(). It has that number among the ranks of its node, which is
// NodeRanks::node, or 0 where nodes do not change: then the number is its rank. narrowcast-run removes the keys before
// another process takes its place, and when the node is gone.
//
// Heartbeats: from its start on the process adds 1 each second. It removes the key at its end. So a process that has
// not begun to live yet is not silent.
inline std::string signs_key(int64_t node, int64_t rank_on_node) {
  return "signs/" + std::to_string(node) + "/" + std::to_string(rank_on_node);
}
// Exists since the process meets the others, and watches them.
inline std::string ready_key(int64_t node, int64_t rank_on_node) {
  return "ready/" + std::to_string(node) + "/" + std::to_string(rank_on_node);
}
// A rank that finds the process silent writes the value of kStarts that it read when its group was made. narrowcast-run
// then ends the process, unless it was started later.
inline std::string silent_key(int64_t node, int64_t rank_on_node) {
  return "silent/" + std::to_string(node) + "/" + std::to_string(rank_on_node);
}

// The environment variable of workers that recover in place, and its value. Other workers do not have the variable.
inline constexpr const char* kRecoveryVariable = "NARROWCAST_RECOVERY";
inline constexpr const char* kRecoveryInPlace = "in_place";

}  // namespace narrowcast::rendezvous
