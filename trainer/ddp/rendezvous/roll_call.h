// Ensures that all ranks that meet in a store belong to one attempt.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "trainer/base/network/places.h"

namespace narrowcast::rendezvous {

// The time that is left, at least 1 ms.
inline std::chrono::milliseconds left_until(std::chrono::steady_clock::time_point deadline) {
  using std::chrono::milliseconds;
  return std::max(milliseconds(1), std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now()));
}

// A store may outlive the processes that used it: torchrun's agent serves one store for all restarts of a job. The
// restart count that it passes to workers does not change at every restart and may differ between nodes. So ranks do
// not trust the store's content: a roll call ensures that all ranks that meet in a store belong to one attempt.
//   - Rank 0 draws a random name for the attempt and publishes it.
//   - Every rank draws a random number and writes it below that name.
//   - When all have, rank 0 publishes all numbers.
// A rank that finds its number among them knows that rank 0 is alive with it. A rank that does not has read the name of
// an earlier attempt, and reads again.
struct RollCall {
  int64_t rank = 0;
  int64_t world_size = 1;
  std::string epoch = {};  // ranks of different epochs do not meet
  std::chrono::steady_clock::time_point deadline;
  // Called while only an attempt is found that has ended: throws if no other one will follow in this epoch.
  std::function<void()> check = [] {};
  // Called with the ranks that are missing at the deadline, before that is thrown.
  std::function<void(const std::vector<int64_t>& ranks)> on_missing = [](const auto& /*ranks*/) {};
  // The number of a rank that has ended; nothing if it is not waited for. By default nodes do not change.
  std::function<std::optional<int64_t>(const RankOfNode& rank)> number = [](const RankOfNode& rank) {
    return std::optional(rank.rank_on_node);
  };
};

// Returns when all ranks have called it with the same `store`; the result is a store for keys of this attempt only.
// Throws c10::DistStoreError naming the ranks that have not called it by the deadline.
c10::intrusive_ptr<c10d::Store> call_roll(const c10::intrusive_ptr<c10d::Store>& store, const RollCall& call);

}  // namespace narrowcast::rendezvous
