#include "trainer/ddp/outer/round_clock.h"

#include <chrono>

namespace narrowcast {
namespace {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

RoundClock::RoundClock(const ProcessGroupPtr& all, const std::vector<int64_t>& groups, const OuterOptions& options)
    : seconds_(options.sync_seconds().value()),
      now_(options.clock() ? options.clock() : std::function<double()>(&steady_seconds)),
      group_(all, groups),
      began_(now_()) {}

bool RoundClock::is_over() const {
  const int64_t is_over = elapsed() >= seconds_ ? 1 : 0;
  return group_.from_first(is_over, "the local group's decision whether a round is over") != 0;
}

}  // namespace narrowcast
