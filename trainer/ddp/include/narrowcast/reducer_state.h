// What a DistributedDataParallel keeps over a restart of the training.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <narrowcast/hook_state.h>

namespace narrowcast {

// The names of the parameters in each bucket, buckets in the order in which they are sent.
using BucketNames = std::vector<std::vector<std::string>>;

// The state that one rank leaves.
struct ReducerState {
  BucketNames buckets;         // the same on all ranks
  int64_t reductions = 0;      // backward passes that averaged gradients, the same on all ranks
  hooks::HookState hook = {};  // this rank's; empty without a hook
};

// The state that one rank resumes from: what is the same on all ranks, and what the former ranks' hooks left for it.
struct SavedReducerState {
  BucketNames buckets;
  int64_t reductions = 0;
  hooks::FormerRanks hook = {};
};

}  // namespace narrowcast
