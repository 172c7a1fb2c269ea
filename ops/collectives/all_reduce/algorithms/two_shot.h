// Two-shot all-reduce: a reduce-scatter of codes and an all-gather of the means' codes, as in R. Rabenseifner,
// "Optimization of Collective Reduction Operations", 2004, but with every message sent directly to the rank that needs
// it: codes that other ranks added up on the way would be rounded at each of them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/collectives/all_reduce/algorithms/exchange.h"

namespace narrowcast::collectives {

// Before:  rank r holds its own array, cut into the same W shards on every rank,
//          and each shard into the same chunks.
// start:   with the receives of both hops posted, chunk after chunk, rank r
//          encodes its part of the shards of ranks r+1, r+2, ..., r-1 and sends
//          each to its owner. Of its own shard nothing is encoded.
// advance: chunk after chunk, rank r waits for all parts of its own shard, sums
//          them with its own in the order of ranks 0, 1, ..., W-1 in float32,
//          divides by W, and sends the encoded mean to all others.
// finish:  chunk after chunk, rank r decodes the W means as they come: its own,
//          too, from the message that the others get.
// After:   every rank has decoded the same bytes.
std::unique_ptr<AllReduceExchange> make_two_shot(const AllReduceOptions& options,
                                                 std::shared_ptr<MessageMemory> memory);

// Into how many chunks each of those shards is cut. In variable formats, whose messages have steps of their own,
// whoever wants the same bits cuts them alike.
int64_t two_shot_chunks(int64_t numel, int64_t world_size, WireFormat format);

// As result_segments.
std::vector<Segment> two_shot_result_segments(const AllReduceOptions& options);

}  // namespace narrowcast::collectives
