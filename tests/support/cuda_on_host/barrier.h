// A barrier for the threads of a warp or a block.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace narrowcast::cuda_on_host {

// Lanes per warp.
inline constexpr int64_t kWarpSize = 32;

// The values that the lanes of a warp pass, by lane.
using LaneValues = std::array<uint64_t, kWarpSize>;

// All `members` arrive, each with a value, and continue once the last one has arrived.
class Barrier {
 public:
  explicit Barrier(int64_t members) : members_(members) {}

  // The calling thread, number `member`, waits at the function called `name`. Returns the values of members 0 to 31;
  // they stay valid until this thread's next call. Throws std::logic_error if others wait at another function.
  const LaneValues& arrive_and_wait(const char* name, int64_t member, uint64_t value);

  // Whether a thread that arrived in round `round` may continue.
  bool over(int64_t round) const { return round < rounds_; }

  const std::string& name() const { return name_; }

 private:
  int64_t members_;
  int64_t present_ = 0;
  int64_t rounds_ = 0;
  std::string name_;
  std::array<LaneValues, 2> values_ = {};  // This round's and the last one's: slow members still read those.
};

// The running thread's warp barrier, its block barrier, and its number in each.
Barrier& warp_barrier();
Barrier& block_barrier();
int64_t lane();
int64_t thread_in_block();

// A copy that a thread has started and not waited for.
struct PendingCopy {
  void* to;
  const void* from;
  size_t bytes;
};

// The pending copies of the running thread.
std::vector<PendingCopy>& pending_copies();

// Lets other threads run until `barrier` has had more than `round` rounds.
void wait_for(const Barrier& barrier, int64_t round);

}  // namespace narrowcast::cuda_on_host
