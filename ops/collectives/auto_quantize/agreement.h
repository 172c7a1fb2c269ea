// Step 2 of a collective whose tensors are sent as FP16 or BFP16 (exchange.h): checks that all ranks make the same call
// with sizes that fit.
#pragma once

#include <cstdint>

#include "ops/collectives/auto_quantize/exchange.h"
#include "ops/comm/groups/arguments.h"

namespace narrowcast::collectives {

// Every rank announces to all others (ops/comm/groups/agree.h)
//  - its collective and its qtype;
//  - how many elements it sends to each rank, and how many it expects from each;
//  - or why it cannot take part.
//
// This is one all-gather, on the CPU if the group can, else on the tensors' device, which then waits for it.
//
// Returns the number of elements of the longest part that this rank sends or receives. Throws c10::ValueError or
// c10::TypeError as plan_* do. Throws c10::DistBackendError if a peer or the network fails, or if a peer's message is
// not such an announcement.
int64_t agree(const Exchange& exchange);

// Announces to the other ranks that this one cannot take part, and throws the error that all ranks throw. `exchange`
// has no tensors.
[[noreturn]] void refuse(const Exchange& exchange, const Refusal& refusal);

}  // namespace narrowcast::collectives
