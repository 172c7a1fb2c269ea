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

constexpr milliseconds kAttempt{1000};   // timeout of one connection
constexpr milliseconds kShortLook{100};  // whether the listener is still there, while it does not answer

bool is_refusal(const std::string& reason) { return reason == std::strerror(ECONNREFUSED); }

// Null if the listener has gone before it answered: c10d would try again for the whole time, at growing intervals.
StorePtr reach(const StoreSearch& search) {
  const SteadyClock::time_point deadline = SteadyClock::now() + search.to_answer;
  bool is_gone = false;
  const auto gives_up = [&] {
    milliseconds left = kShortLook;
    is_gone = is_refusal(try_to_reach(search.place.host, search.place.port, left));
    return is_gone || SteadyClock::now() > deadline + kAttempt;
  };
  try {
    return network::reach_tcp_store(search.place.host, search.place.port, search.to_answer, gives_up);
  } catch (const c10::DistNetworkError&) {
    if (!is_gone) {
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
    const std::string reason = try_to_reach(search.place.host, search.place.port, left);
    if (reason.empty()) {
      if (StorePtr store = reach(search)) {
        return {.store = std::move(store)};
      }
    } else if (std::shared_ptr<HostedStore> hosted =
                   search.own != nullptr && is_refusal(reason) ? search.own->serve() : nullptr) {
      return {.store = hosted->store(), .hosted = std::move(hosted)};
    }
    TORCH_CHECK_WITH(DistNetworkError, SteadyClock::now() < deadline,
                     "cannot be reached: ", reason.empty() ? std::strerror(ECONNREFUSED) : reason);
  } while (search.pauses());
  return {};
}

}  // namespace narrowcast::launcher
