// The time that hooks take for buckets, without a model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <narrowcast/hook_options.h>
#include <narrowcast/process_group.h>
#include "trainer/train/bench/results.h"

namespace narrowcast::bench {

// What a hook of that name is made with: the options are for those that may exchange in two levels.
hooks::HookOptions options_of(const std::string& hook, const ProcessGroupPtr& group, const hooks::WireOptions& wire);

// One case: all hooks, in alternation.
struct HookWorkload {
  std::vector<std::string> hooks = {};
  int64_t numel = 0;    // float32 elements of a bucket
  int64_t buckets = 1;  // in flight at once
  int64_t warmup_iterations = 0;
  int64_t iterations = 1;
  std::vector<int64_t> nodes = {};  // the number of each rank's node, by rank
  hooks::WireOptions wire = {};
};

// What one case gave.
struct HookTimes {
  std::vector<HookTime> times = {};  // in the order of the hooks
  int64_t payload_bytes_sent = 0;    // by this rank, warm-up included
};

// A collective. In each iteration every hook has its turn (another one begins each time): all ranks start together with
// fresh gradients, run the hook on all buckets, and wait for all of them. Throws c10::ValueError if `nodes` is not as
// long as the group is large, c10::DistBackendError if a peer fails, and what the hooks throw.
HookTimes measure_hooks(const ProcessGroupPtr& group, const HookWorkload& workload);

}  // namespace narrowcast::bench
