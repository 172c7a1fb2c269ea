// A clock for judging how long others have been silent.
#pragma once

#include <algorithm>
#include <chrono>

#include "trainer/launcher/workers/worker_runner.h"

namespace narrowcast::launcher {

// Time in which this process was stopped itself does not count, but for kLongestStep of it: nobody else is to blame for
// that. To be asked more often than that.
class PatientClock {
 public:
  Clock::time_point now() {
    const Clock::time_point real = Clock::now();
    time_ += std::min<Clock::duration>(real - last_, kLongestStep);
    last_ = real;
    return time_;
  }

 private:
  static constexpr std::chrono::milliseconds kLongestStep{1000};

  Clock::time_point last_ = Clock::now();
  Clock::time_point time_ = last_;
};

}  // namespace narrowcast::launcher
