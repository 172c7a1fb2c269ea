// How ranks replace an array by its mean over them: in one hop (one_shot.cpp) or in two (two_shot.cpp), between all
// ranks or, once those of a node have summed in its memory (two_levels.cpp), between nodes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <narrowcast/export.h>
#include <narrowcast/wire_format.h>
#include "ops/codec/wire_rounding.h"
#include "ops/collectives/all_reduce/algorithms/route.h"
#include "ops/collectives/all_reduce/array/element_order.h"
#include "ops/collectives/all_reduce/array/segments.h"
#include "ops/collectives/all_reduce/codec/codec.h"
#include "ops/collectives/all_reduce/memory/message_memory.h"
#include "ops/comm/engine/transport.h"
#include "ops/comm/link/link.h"
#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::collectives {

// Messages of one array share a rank's channels with those of no other array of the same job.
inline constexpr int64_t kChannelsPerArray = engine::Transport::kChannels / 2;

struct AllReduceOptions {
  int64_t rank = 0;        // This rank's place among those that exchange,
  int64_t world_size = 1;  // which are so many.
  int64_t numel = 0;
  WireFormat format = WireFormat::kFp32;
  int64_t first_channel = 0;              // The first of this array's own kChannelsPerArray.
  std::vector<int64_t> group_ranks = {};  // By place, the ranks in the group; empty: they are the places.
  ElementOrder order = {};                // In which the array travels: its segments are of elements in that order.

  // The places that are `distance`, 1 to world_size - 1, before and after this one in a ring. The receiver at a
  // distance before is the sender at that distance after.
  int64_t before(int64_t distance) const { return (rank + world_size - distance) % world_size; }
  int64_t after(int64_t distance) const { return (rank + distance) % world_size; }

  int64_t group_rank(int64_t place) const { return group_ranks.empty() ? place : group_ranks.at(place); }
};

// The part of an engine::Job that concerns one array, on the CPU: post_receives and start are called in Job's start,
// advances, is_ready, advance and finish as Job's are, and all again when finish has returned. Afterwards every rank
// holds the same bits.
class AllReduceExchange {
 public:
  virtual ~AllReduceExchange() = default;

  // Bytes that this rank sends per call, to all peers together.
  virtual int64_t payload_bytes() const = 0;

  virtual int64_t advances() const { return 1; }
  virtual bool is_ready() { return false; }

  // Posts every receive, those of later hops included.
  virtual void post_receives(engine::Transport& transport) = 0;
  virtual void start(engine::Transport& transport, AllReduceCall call) = 0;
  virtual void advance(engine::Transport& /*transport*/) {}
  virtual void finish(engine::Transport& transport) = 0;
};

// The exchange that goes `route`; its messages lie in `memory`.
std::unique_ptr<AllReduceExchange> make_exchange(Route route, const AllReduceOptions& options,
                                                 std::shared_ptr<MessageMemory> memory);

// The segments of the array whose means that exchange's finish writes one after the other, in their order. Some may be
// empty, of which SegmentCallbacks tell nothing.
NARROWCAST_EXPORT std::vector<Segment> result_segments(Route route, const AllReduceOptions& options);

}  // namespace narrowcast::collectives
