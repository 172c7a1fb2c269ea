// Which algorithm an array takes: over few ranks, or where it is small, an all-gather of codes; else reduce-scatter and
// all-gather.
#pragma once

#include <cstdint>

#include <narrowcast/wire_format.h>
#include "ops/comm/link/link.h"

namespace narrowcast::collectives {

enum class Route {
  kNowhere,  // One rank: there is nothing to send, and nothing is rounded.
  kOneShot,  // Every rank sends its whole message to every other.
  kTwoShot,  // Every rank sums one shard of the array, and sends the result to every other.
};

// How an array of `numel` elements in `format`, whose message has S bytes, goes over W ranks:
//   one shot:  1 hop, (W - 1) S bytes
//   two shots: 2 hops, 2 (W - 1) / W S bytes
// With two ranks both send S bytes, and one shot is a hop shorter at any size. From three ranks on one shot is cheaper
// for small arrays: at the default cost below 93,750 bytes for W = 3, 41,666 for W = 4, 11,904 for W = 8.
// Depends on nothing that differs between ranks.
inline Route choose_route(int64_t numel, int64_t world_size, WireFormat format, const LinkCost& cost = {}) {
  if (world_size == 1) {
    return Route::kNowhere;
  }
  const auto bytes = static_cast<double>(encoded_size(numel, format));
  const auto ranks = static_cast<double>(world_size);
  const double one_shot = cost.seconds_per_hop + (ranks - 1) * bytes * cost.seconds_per_byte;
  const double two_shot = 2 * cost.seconds_per_hop + 2 * (ranks - 1) / ranks * bytes * cost.seconds_per_byte;
  return one_shot <= two_shot ? Route::kOneShot : Route::kTwoShot;
}

// Hops of an array on that route.
constexpr int64_t hops_of(Route route) { return route == Route::kNowhere ? 0 : route == Route::kOneShot ? 1 : 2; }

}  // namespace narrowcast::collectives
