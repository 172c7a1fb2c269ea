// The key-value store that launchers and workers of a job share, served by this process.
#pragma once

#include <chrono>
#include <string>

#include "trainer/base/listening_socket.h"
#include "trainer/base/tcp_store.h"

namespace narrowcast::launcher {

// What all keys of launchers begin with; workers' keys do not.
inline constexpr const char* kLauncherKeys = "narrowcast-run/";

// Tells ranks that wait for others in `store`, the job's, that this one will not come any more.
void tell_ended_rank(c10d::Store& store, const std::string& run_id, int64_t rank);

class HostedStore {
 public:
  static constexpr std::chrono::milliseconds kPatience{5000};

  // Serves at once, on a thread of its own, until this object goes. Throws c10::ValueError, within kPatience beside
  // the time that the resolver takes, naming the address if this process cannot serve there, or not reach what it
  // serves.
  HostedStore(const std::string& address, const network::ListeningSocket& socket);

  // Removes every key that workers left, so that those of the next round find an empty
  // store: PyTorch's own workers do not tell rounds apart, and would read addresses of
  // processes that are gone.
  void forget_workers();

  const network::TcpStorePtr& store() const { return store_; }

 private:
  network::TcpStorePtr store_;
};

}  // namespace narrowcast::launcher
