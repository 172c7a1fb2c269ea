// Whether all ranks mean the same exchange.
#pragma once

#include <cstdint>

#include "ops/collectives/auto_quantize/exchange.h"
#include "ops/collectives/refusal.h"

namespace narrowcast::collectives {

// Every rank hands all others one record: which collective it calls, its qtype, how many elements it sends to each rank
// and how many it expects from each, or why it cannot take part. All ranks compare the same W records, so that all of
// them throw the same error if the calls do not fit together. One all-gather, on the CPU if the group can; else on the
// tensors' device, which then waits for it.

// Returns the number of elements of the longest run that this rank sends or receives. c10::ValueError or c10::TypeError
// as above; c10::DistBackendError if a peer or the network fails, or a peer sends what is no record.
int64_t agree(const Exchange& exchange);

// Tells the other ranks that this one cannot take part, and throws what they throw. `exchange` has no tensors.
[[noreturn]] void refuse(const Exchange& exchange, const Refusal& refusal);

}  // namespace narrowcast::collectives
