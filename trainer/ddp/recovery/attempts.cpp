#include "trainer/ddp/recovery/attempts.h"

#include <c10/util/Exception.h>

#include <narrowcast/network_errors.h>

namespace narrowcast::recovery {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::minutes kLongAgo{1};

// This rank's place in the group of the next attempt.
WorkerEnv next_env(WorkerEnv env) {
  ++env.restart_count;
  return env;
}

}  // namespace

void work_until_nothing_is_lost(const WorkerEnv& env, const Work& work) {
  Attempt attempt = {.env = env};
  std::optional<Clock::time_point> last_loss;
  int64_t last_step = -1;
  int64_t fruitless = 0;
  for (;;) {
    attempt.has_joined = false;
    try {
      if (work.attempt(attempt) == AttemptEnd::kDone) {
        return;
      }
    } catch (const c10::DistBackendError& error) {
      const int64_t step = work.step();
      const Clock::time_point lost_at = Clock::now();
      const bool was_just_before = last_loss.has_value() && lost_at - *last_loss < kLongAgo;
      fruitless = step == last_step && was_just_before ? fruitless + 1 : 1;
      if (!attempt.has_joined || is_time_out(error) || fruitless == kMostFruitless ||
          (work.gives_up && work.gives_up())) {
        throw;
      }
      last_step = step;
      last_loss = lost_at;
    }
    attempt.interrupted_at = Clock::now();
    attempt.env = next_env(attempt.env);
  }
}

}  // namespace narrowcast::recovery
