// Two-shot all-reduce: a reduce-scatter of encoded shards and an all-gather of encoded means, as in R. Rabenseifner,
// "Optimization of Collective Reduction Operations", 2004. Unlike there, every message is sent directly to the rank
// that needs it: a partial sum that passes through other ranks would be rounded at each of them.
#pragma once

#include <memory>

#include "ops/collectives/all_reduce/algorithms/exchange.h"

namespace narrowcast::collectives {

// Before:  rank r holds its own array, cut into the same W shards on every rank,
//          and each shard into the same chunks.
// start:   the receives of both hops are posted. For each chunk, rank r encodes its
//          part of the shards of ranks r+1, r+2, ..., r-1 and sends each to its
//          owner. It does not encode its own shard.
// advance: for each chunk, rank r waits for the parts that other ranks sent of its
//          shard. It sums them with its own part in float32 in the order of
//          ranks 0, 1, ..., W-1, divides by W, and sends the encoded mean to all.
// finish:  for each chunk, rank r decodes the W means as they arrive. It decodes its
//          own mean from the message that it sent to the others.
// After:   every rank has decoded the same bytes.
std::unique_ptr<AllReduceExchange> make_two_shot(const AllReduceOptions& options,
                                                 std::shared_ptr<MessageMemory> memory);

}  // namespace narrowcast::collectives
