// The time that hooks take for buckets, and how exact their means are, without a model.
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

// What one size of bucket gave.
struct Exactness {
  std::vector<HookExactness> hooks = {};  // in the order of the names
  int64_t payload_bytes_sent = 0;         // by this rank
};

// A collective. Each hook of these names averages one bucket of `numel` gradients, drawn anew on each rank, and every
// element is compared with the exact mean: the ranks' gradients summed in float64 by an all-reduce, over their number.
// The tolerance is the one that the hook's row derives from the gradients (error_terms), summed over the ranks by an
// all-reduce. The worst rank counts. PowerSGD is left out: its mean of one step is not meant to
// be exact. Takes about 10 float64 tensors of `numel` elements. Throws c10::DistBackendError
// if a peer fails, and what the hooks throw.
Exactness measure_exactness(const ProcessGroupPtr& group, const std::vector<std::string>& names, int64_t numel,
                            const hooks::WireOptions& wire = {});

}  // namespace narrowcast::bench
