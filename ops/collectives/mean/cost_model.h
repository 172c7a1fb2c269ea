// Which way an all-reduce takes.
#pragma once

#include <cstdint>

#include <narrowcast/export.h>
#include "ops/codec/wire_format.h"

namespace narrowcast::collectives {

enum class Route {
  kNowhere,  // One rank: there is nothing to send, and nothing is rounded.
  kOneShot,  // Every rank sends its whole message to every other.
  kTwoShot,  // Every rank sums one shard of the array, and sends the result to every other.
};

// What sending costs a rank: each hop waits for its messages once, each byte takes its time on the rank's own link.
// The defaults are a network of 10 Gbit/s: on a slower one two shots pay earlier than this says, on a faster one later.
struct LinkCost {
  double seconds_per_hop = 50e-6;
  double seconds_per_byte = 0.8e-9;
};

// Of an array of `numel` elements in `format`, whose message has S bytes, over W ranks:
//   one shot:  1 hop, (W - 1) S bytes
//   two shots: 2 hops, 2 (W - 1) / W S bytes
// With two ranks both send S bytes, and one shot is a hop shorter at any size. From three ranks on one shot is cheaper
// for small arrays: at the default cost below 93,750 bytes for W = 3, 41,666 for W = 4, 11,904 for W = 8.
// Depends on nothing that differs between ranks.
NARROWCAST_EXPORT Route choose_route(int64_t numel, int64_t world_size, WireFormat format, const LinkCost& cost = {});

}  // namespace narrowcast::collectives
