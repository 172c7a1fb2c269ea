// How exact the hooks' means are, without a model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <narrowcast/hook_options.h>
#include <narrowcast/process_group.h>
#include "trainer/train/bench/results.h"

namespace narrowcast::bench {

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
