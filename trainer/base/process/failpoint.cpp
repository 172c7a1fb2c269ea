#include "trainer/base/process/failpoint.h"

#ifdef NARROWCAST_FAILPOINTS

#include <atomic>
#include <csignal>
#include <optional>

namespace narrowcast {
namespace {

std::optional<Failpoint> chosen;
std::atomic<int64_t> passes_left{0};

}  // namespace

bool has_failpoints() { return true; }

void kill_at(Failpoint point, int64_t nth) {
  chosen = point;
  passes_left = nth;
}

void pass(Failpoint point) {
  if (point == chosen && --passes_left == 0) {
    std::raise(SIGKILL);
  }
}

}  // namespace narrowcast

#else

namespace narrowcast {

bool has_failpoints() { return false; }

void kill_at(Failpoint /*point*/, int64_t /*nth*/) {}

void pass(Failpoint /*point*/) {}

}  // namespace narrowcast

#endif
