// Decides once per round, in a store, which groups take part in an outer round.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace narrowcast {

// The store has one key per decided round. Its value is the list of the groups whose differences the round averages. It
// is set once, by compare-and-set: if two groups end a round at once with different lists, the first list counts, and
// both get it. So each call is one round trip to the store, and no call waits for a rank.
class RoundDecisions {
 public:
  // `store` has no other keys. `groups`: their number.
  RoundDecisions(c10::intrusive_ptr<c10d::Store> store, int64_t groups, int64_t quorum)
      : store_(std::move(store)), groups_(groups), quorum_(quorum) {}

  // Decides the round, unless it is decided: returns the groups that take part. CorruptInputError for a value of the
  // store that is not a list of at least `quorum` groups.
  std::vector<int64_t> decide(int64_t round, const std::vector<int64_t>& proposal);

  // The groups that take part in the round; no value if it is not decided.
  std::optional<std::vector<int64_t>> find(int64_t round);

  // Deletes keys of rounds before `round`, which no rank reads any more: at most two per call. One rank calls it.
  void forget_before(int64_t round);
  // Deletes all of them, each in a round trip. For the end.
  void forget_all_before(int64_t round);

 private:
  std::string compare_and_set(int64_t round, const std::string& expected, const std::string& wanted);

  const c10::intrusive_ptr<c10d::Store> store_;
  const int64_t groups_;
  const int64_t quorum_;
  int64_t forgotten_ = 0;  // rounds
};

}  // namespace narrowcast
