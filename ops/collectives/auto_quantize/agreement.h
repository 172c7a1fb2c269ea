// Whether all ranks mean the same exchange.
#pragma once

#include <exception>

#include "ops/collectives/auto_quantize/exchange.h"

namespace narrowcast::collectives {

// Every rank hands all others one record of 2W + 2 int64 numbers: which collective it calls, its qtype, how many
// elements it sends to each rank and how many it expects from each. All ranks compare the same W records, so that all
// of them throw the same c10::ValueError if the calls do not fit together. One all-gather, on the CPU if the group can;
// else on the tensors' device, which then waits for it. Returns the number of elements of the longest run.
int64_t agree(const Exchange& exchange);

// Blocks until `work` is complete. A failure becomes c10::DistBackendError naming this rank and `exchange`.
void wait_for(c10d::Work& work, const Exchange& exchange);

// Rethrows `failure` (not null) of `exchange` as that error.
[[noreturn]] void throw_backend_error(const std::exception_ptr& failure, const Exchange& exchange);

}  // namespace narrowcast::collectives
