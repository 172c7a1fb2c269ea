// c10d's TCPStore, the key-value store of a job, at an address of our choice.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "trainer/base/listening_socket.h"

namespace narrowcast::network {

using TcpStorePtr = c10::intrusive_ptr<c10d::TCPStore>;

// Serves a store on `socket`, which listens at `address`, a name or a number, on a thread of its own until the result
// goes, which is also the store's first client. (Left to make a socket, c10d would listen at all addresses of the
// machine.) `timeout`: of connecting to it, and of waiting for a key later. Throws c10::Error if it cannot be reached.
TcpStorePtr serve_tcp_store(const std::string& address, const ListeningSocket& socket,
                            std::chrono::milliseconds timeout);

// A client of the store that is served at `host`, a name or a number, and `port`. Tries again until `timeout`, which is
// also that of waiting for a key later, and throws c10::Error then.
TcpStorePtr reach_tcp_store(const std::string& host, int64_t port, std::chrono::milliseconds timeout);

}  // namespace narrowcast::network
