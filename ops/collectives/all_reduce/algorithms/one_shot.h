// One-shot all-reduce: an all-gather of encoded arrays. Every rank averages all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/collectives/all_reduce/algorithms/exchange.h"
#include "ops/collectives/all_reduce/codec/codec.h"

namespace narrowcast::collectives {

// Before: rank r holds its own array, cut into the same chunks on every rank.
// start:  rank r has posted a receive for every chunk from every peer. It encodes
//         chunk after chunk and sends each to ranks r+1, r+2, ..., r-1.
// finish: for each chunk, rank r waits for the messages of all peers and averages
//         the messages of ranks 0, 1, ..., W-1. Its own part also goes through its
//         own message, even with a single rank.
// After:  every rank has computed the same mean from the same bytes.
// The codec defines the messages; options.format is not read.
std::unique_ptr<AllReduceExchange> make_one_shot(const AllReduceOptions& options, std::unique_ptr<AllReduceCodec> codec,
                                                 std::shared_ptr<MessageMemory> memory);

// The result_ranges of a one-shot exchange whose codec has that grain.
std::vector<ElementRange> one_shot_result_ranges(int64_t numel, int64_t grain);

}  // namespace narrowcast::collectives
