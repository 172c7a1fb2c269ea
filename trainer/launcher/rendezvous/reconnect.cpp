#include "trainer/launcher/rendezvous/reconnect.h"

#include <c10/util/Exception.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "trainer/base/network/tcp_store.h"

namespace narrowcast::launcher {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kBeforeAttempt{20};  // A host that ends may close its socket last.
constexpr std::chrono::milliseconds kToReconnect{1000};
constexpr int64_t kLooksAtAStranger = 10;  // Another program may overwrite its proof for a moment.

// Null while the network is down, or the host is about to end.
StorePtr try_to_connect(const c10d::TCPStore& broken) {
  try {
    StorePtr store = network::reach_tcp_store(broken.getHost(), broken.getPort(), kToReconnect);
    store->setTimeout(broken.getTimeout());
    return store;
  } catch (const c10::DistError&) {
    return nullptr;
  }
}

}  // namespace

StorePtr reconnect(const c10d::Store& broken, std::chrono::milliseconds patience,
                   const std::function<bool(std::chrono::milliseconds)>& pauses,
                   const std::function<bool(const StorePtr&)>& is_same) {
  const auto& server = dynamic_cast<const c10d::TCPStore&>(broken);
  const SteadyClock::time_point deadline = SteadyClock::now() + patience;
  int64_t strangers = 0;
  while (strangers < kLooksAtAStranger && SteadyClock::now() < deadline && pauses(kBeforeAttempt)) {
    std::chrono::milliseconds left = kToReconnect;
    const std::string reason = try_to_reach(server.getHost(), server.getPort(), left);
    if (reason == std::strerror(ECONNREFUSED)) {
      break;
    }
    try {
      if (StorePtr store = reason.empty() ? try_to_connect(server) : nullptr) {
        if (is_same(store)) {
          return store;
        }
        ++strangers;
      }
    } catch (const c10::DistNetworkError&) {
      // This connection broke, too.
    }
  }
  return nullptr;
}

}  // namespace narrowcast::launcher
