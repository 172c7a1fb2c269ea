// One-shot all-reduce: an all-gather of codes, which every rank averages.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/collectives/all_reduce/algorithms/exchange.h"
#include "ops/collectives/all_reduce/codec/codec.h"

namespace narrowcast::collectives {

// Before: rank r holds its own array, cut into the same chunks on every rank.
// start:  with a receive posted for every chunk from every peer, rank r encodes
//         chunk after chunk and sends each to ranks r+1, r+2, ..., r-1.
// finish: chunk after chunk, rank r waits for the messages of all peers and
//         averages those of ranks 0, 1, ..., W-1. Its own part goes through its
//         own message like any other, also where it is alone.
// After:  every rank has computed the same mean from the same bytes.
// The codec says what the messages are, not options.format.
std::unique_ptr<AllReduceExchange> make_one_shot(const AllReduceOptions& options, std::unique_ptr<AllReduceCodec> codec,
                                                 std::shared_ptr<MessageMemory> memory);

// As result_segments, of a codec with that grain.
std::vector<Segment> one_shot_result_segments(int64_t numel, int64_t grain);

}  // namespace narrowcast::collectives
