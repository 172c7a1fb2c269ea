// The key-value store that launchers and workers of a job share, served by this process.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "trainer/network/listening_socket.h"

namespace narrowcast::launcher {

// What all keys of launchers begin with; workers' keys do not.
inline constexpr const char* kLauncherKeys = "narrowcast-run/";

// c10d's TCPStore listens on all addresses of the machine if it is left to make its own
// socket; here it takes over one that is bound to the address that was asked for.
class HostedStore {
 public:
  // Serves at once, on a thread of its own, until this object goes.
  HostedStore(const std::string& address, const network::ListeningSocket& socket);

  // Removes every key that workers left, so that those of the next round find an empty
  // store: PyTorch's own workers do not tell rounds apart, and would read addresses of
  // processes that are gone.
  void forget_workers();

  const c10::intrusive_ptr<c10d::TCPStore>& store() const { return store_; }

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

}  // namespace narrowcast::launcher
