// Ranks that wait for each other's progress, so that a test decides which of them are late.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "tests/support/patience.h"

namespace narrowcast::testing {

// How far each rank has come, in numbers that grow. A rank may wait for others.
class RankProgress {
 public:
  explicit RankProgress(int64_t world_size) : numbers_(static_cast<size_t>(world_size), 0) {}

  void set(int64_t rank, int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    numbers_.at(rank) = number;
    changed_.notify_all();
  }
  int64_t of(int64_t rank) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return numbers_.at(rank);
  }
  void wait_until(const std::function<bool(const std::vector<int64_t>&)>& holds) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!changed_.wait_for(lock, kPatience, [&] { return holds(numbers_); })) {
      throw std::runtime_error("the other ranks have not come as far as they should");
    }
  }
  void wait_for_others(int64_t rank, int64_t number) {
    wait_until([&](const std::vector<int64_t>& all) {
      for (size_t other = 0; other < all.size(); ++other) {
        if (static_cast<int64_t>(other) != rank && all[other] < number) return false;
      }
      return true;
    });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int64_t> numbers_;
};

}  // namespace narrowcast::testing
