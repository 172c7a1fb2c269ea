// Reduce-scatter, the first hop of an all-reduce: every rank gets the mean of one shard, its own.
#pragma once

#include <memory>

#include "ops/collectives/all_reduce/algorithms/exchange.h"
#include "ops/collectives/all_reduce/algorithms/route.h"

namespace narrowcast::collectives {

// Before:  rank r holds its own array, cut into the same W shards on every rank.
// start:   as the first hop of two shots.
// finish:  rank r writes the mean of its shard to its array; its other elements stay as they are.
//
// options.result is not kWhole. With kShard the mean is summed in float32 from the other ranks' messages and this
// rank's own values, and not rounded again. With kShardOfWhole it is rounded as the exchange of `route` would: in one
// shot this rank's own part is rounded, in two shots the mean. The elements then have the bits that this exchange would
// give, except in variable formats, whose messages have one step for all of their elements. In one hop, error feedback
// is that of the route; kShard adds the residuals of this rank's shard, and sets them to 0 where the mean is finite.
std::unique_ptr<AllReduceExchange> make_reduce_scatter(Route route, const AllReduceOptions& options,
                                                       std::shared_ptr<MessageMemory> memory);

}  // namespace narrowcast::collectives
