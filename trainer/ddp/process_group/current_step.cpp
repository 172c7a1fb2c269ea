#include <narrowcast/current_step.h>

#include <c10/util/StringUtil.h>

#include <chrono>
#include <map>
#include <mutex>
#include <utility>

namespace narrowcast {
namespace {

using Clock = std::chrono::steady_clock;

struct Step {
  std::string name;
  Clock::time_point begin;
};

// Of all ranks of the process (in tests, ranks are threads), by rank and the order in which they began.
struct Steps {
  std::mutex mutex;
  int64_t next = 0;
  std::map<std::pair<int64_t, int64_t>, Step> current;
};

Steps& steps() {
  static Steps instance;
  return instance;
}

}  // namespace

StepScope::StepScope(int64_t rank, std::string step) : rank_(rank), number_(0) {
  const std::lock_guard<std::mutex> lock(steps().mutex);
  number_ = steps().next++;
  steps().current[{rank_, number_}] = {std::move(step), Clock::now()};
}

StepScope::~StepScope() {
  const std::lock_guard<std::mutex> lock(steps().mutex);
  steps().current.erase({rank_, number_});
}

std::string describe_current_step(int64_t rank) {
  const std::lock_guard<std::mutex> lock(steps().mutex);
  const auto after = steps().current.lower_bound({rank + 1, 0});
  if (after == steps().current.begin() || std::prev(after)->first.first != rank) {
    return "is in no collective";
  }
  const Step& step = std::prev(after)->second;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - step.begin).count();
  return c10::str("has been in ", step.name, " for ", seconds, " s");
}

}  // namespace narrowcast
