#include "trainer/launcher/rendezvous/find_store.h"

#include <c10/util/Exception.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "trainer/base/network/tcp_store.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

constexpr milliseconds kAttempt{1000};       // timeout of one connection
constexpr milliseconds kBetweenLooks{1000};  // whether the listener is still there, while it does not answer

// Null if the listener has gone before it answered: c10d would try again for the whole time, at growing intervals. Also
// null if the search ends.
StorePtr reach(const StoreSearch& search) {
  const SteadyClock::time_point deadline = SteadyClock::now() + search.to_answer;
  SteadyClock::time_point next_look = SteadyClock::now();
  bool is_no_use = false;
  const auto gives_up = [&] {
    is_no_use = search.ends();
    if (!is_no_use && SteadyClock::now() >= next_look) {
      milliseconds left = kAttempt;
      is_no_use = reach_each(search.place.host, search.place.port, left).is_free;
      next_look = SteadyClock::now() + kBetweenLooks;
    }
    return is_no_use || SteadyClock::now() > deadline + kAttempt;
  };
  try {
    return network::reach_tcp_store(search.place.host, search.place.port, search.to_answer, gives_up);
  } catch (const c10::DistNetworkError&) {
    if (!is_no_use) {
      throw;
    }
    return nullptr;
  }
}

}  // namespace

FoundStore find_store(const StoreSearch& search) {
  const SteadyClock::time_point deadline = SteadyClock::now() + search.to_listen;
  do {
    milliseconds left = kAttempt;
    const auto [reason, is_free] = reach_each(search.place.host, search.place.port, left);
    if (reason.empty()) {
      if (StorePtr store = reach(search)) {
        return {.store = std::move(store)};
      }
    } else if (std::shared_ptr<HostedStore> hosted = search.own != nullptr && is_free ? search.own->serve() : nullptr) {
      return {.store = hosted->store(), .hosted = std::move(hosted)};
    }
    TORCH_CHECK_WITH(DistNetworkError, SteadyClock::now() < deadline,
                     "cannot be reached: ", reason.empty() ? std::strerror(ECONNREFUSED) : reason);
  } while (search.pauses());
  return {};
}

}  // namespace narrowcast::launcher
