// Choice of the all-reduce algorithm for an array. Few ranks or small arrays use an all-gather of encoded arrays,
// others a reduce-scatter and an all-gather.
#pragma once

#include <cstdint>

#include <narrowcast/wire_format.h>
#include "ops/codec/wire_format.h"
#include "ops/comm/link/link.h"

namespace narrowcast::collectives {

enum class Route {
  kNowhere,  // One rank: nothing is sent and nothing is rounded.
  kOneShot,  // Every rank sends its whole message to every other rank.
  kTwoShot,  // Every rank averages one shard and sends the mean to every other rank.
};

// Chooses the cheaper algorithm for an array of `numel` elements in `format` and W ranks. The message of the array has
// S bytes.
//   one shot:  1 hop, (W - 1) S bytes
//   two shots: 2 hops, 2 (W - 1) / W S bytes
// With two ranks both send S bytes, and one shot saves a hop at any size. With three or more ranks one shot is cheaper
// for small arrays: at the default cost below 93,750 bytes for W = 3, 41,666 for W = 4, 11,904 for W = 8. The result
// depends only on values that are the same on all ranks.
//
// Sparse formats always use one shot. A mean of W messages has up to W times the kept elements of one, and a second hop
// would drop all but the largest again. So all ranks add the messages of all ranks.
inline Route choose_route(int64_t numel, int64_t world_size, WireFormat format, const LinkCost& cost = {}) {
  if (world_size == 1) {
    return Route::kNowhere;
  }
  if (codec::wire::is_sparse(format)) {
    return Route::kOneShot;
  }
  const auto bytes = static_cast<double>(encoded_size(numel, format));
  const auto ranks = static_cast<double>(world_size);
  const double one_shot = cost.seconds_per_hop + (ranks - 1) * bytes * cost.seconds_per_byte;
  const double two_shot = 2 * cost.seconds_per_hop + 2 * (ranks - 1) / ranks * bytes * cost.seconds_per_byte;
  return one_shot <= two_shot ? Route::kOneShot : Route::kTwoShot;
}

// Number of hops on that route.
constexpr int64_t hops_of(Route route) { return route == Route::kNowhere ? 0 : route == Route::kOneShot ? 1 : 2; }

}  // namespace narrowcast::collectives
