// Where the threads of a warp, or of a block, wait for each other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace narrowcast::cuda_on_host {

// Lanes of a warp.
inline constexpr int64_t kWarpSize = 32;

// What the lanes of a warp bring, by lane.
using LaneValues = std::array<uint64_t, kWarpSize>;

// All `members` come, each with a value, and go on once the last is there.
class Barrier {
 public:
  explicit Barrier(int64_t members) : members_(members) {}

  // The calling thread, number `member`, waits at the function called `name`. Returns what members 0 to 31 brought;
  // stays valid until that thread's next call. Throws std::logic_error if others wait at another function.
  const LaneValues& arrive_and_wait(const char* name, int64_t member, uint64_t value);

  // Whether a thread that came as number `round` may go on.
  bool over(int64_t round) const { return round < rounds_; }

  const std::string& name() const { return name_; }

 private:
  int64_t members_;
  int64_t present_ = 0;
  int64_t rounds_ = 0;
  std::string name_;
  std::array<LaneValues, 2> values_ = {};  // Of this round and the last, which slow members still read.
};

// For the thread that runs: its warp's barrier, its block's, and its number in them.
Barrier& warp_barrier();
Barrier& block_barrier();
int64_t lane();
int64_t thread_in_block();

// A copy that a thread asked for and has not waited for.
struct PendingCopy {
  void* to;
  const void* from;
  size_t bytes;
};

// Returns those of the thread that runs.
std::vector<PendingCopy>& pending_copies();

// Lets other threads run until `barrier` has had more than `round` rounds.
void wait_for(const Barrier& barrier, int64_t round);

}  // namespace narrowcast::cuda_on_host
