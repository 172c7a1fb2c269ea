// How ranks replace an array by its mean over them, in one hop (one_shot.cpp) or in two (two_shot.cpp), or each rank
// its shard only (reduce_scatter.cpp). All ranks exchange messages. In two levels (two_levels.cpp) the ranks of a node
// first average in its shared memory, and only nodes exchange messages.
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
#include "ops/collectives/all_reduce/array/element_range.h"
#include "ops/collectives/all_reduce/codec/codec.h"
#include "ops/collectives/all_reduce/memory/message_memory.h"
#include "ops/comm/engine/transport.h"
#include "ops/comm/link/link.h"
#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::collectives {

// Number of channels of one array; no other array of the same job uses them.
inline constexpr int64_t kChannelsPerArray = engine::Transport::kChannels / 2;

// The elements of its array whose mean a rank gets. The others keep their values or, in two levels, get any.
enum class Result {
  kWhole,         // All.
  kShard,         // Its shard: SentParts::mean of two_levels.h. Only other ranks' parts are rounded.
  kShardOfWhole,  // Its shard, with the bits of kWhole (reduce_scatter.h).
};

struct AllReduceOptions {
  int64_t rank = 0;        // This rank's place among the ranks that exchange messages.
  int64_t world_size = 1;  // The number of these ranks.
  int64_t numel = 0;
  WireFormat format = WireFormat::kFp32;
  int64_t first_channel = 0;              // The first of this array's kChannelsPerArray channels.
  std::vector<int64_t> group_ranks = {};  // Group rank of each place; empty: places are group ranks.
  ElementOrder order = {};                // Elements are sent in this order, and ranges count in it.
  Result result = Result::kWhole;         // If it is not kWhole, `order` is the array's own.

  // The places at `distance`, 1 to world_size - 1, before and after this one in a ring. If p = before(d), then p's
  // after(d) is this place.
  int64_t before(int64_t distance) const { return (rank + world_size - distance) % world_size; }
  int64_t after(int64_t distance) const { return (rank + distance) % world_size; }

  int64_t group_rank(int64_t place) const { return group_ranks.empty() ? place : group_ranks.at(place); }
};

// One array's part of an engine::Job, on the CPU. Job's start calls post_receives and start; the other functions are
// called as Job's functions of the same names. The sequence may be repeated once finish has returned. Afterwards every
// rank holds the same bits of the elements that it gets.
class AllReduceExchange {
 public:
  virtual ~AllReduceExchange() = default;

  // Bytes that this rank sends per call, to all peers together.
  virtual int64_t payload_bytes() const = 0;

  virtual int64_t advances() const { return 1; }
  virtual bool is_ready() { return false; }

  // See engine::Job. The call is the one of start.
  virtual void prepare(const AllReduceCall& /*call*/) {}
  virtual void cancel() {}

  // Posts every receive, those of later hops included.
  virtual void post_receives(engine::Transport& transport) = 0;
  virtual void start(engine::Transport& transport, AllReduceCall call) = 0;
  virtual void advance(engine::Transport& /*transport*/) {}
  virtual void finish(engine::Transport& transport) = 0;

  // See engine::Job.
  virtual void give_up() {}
};

// Makes the exchange for `route`. Its messages lie in `memory`.
std::unique_ptr<AllReduceExchange> make_exchange(Route route, const AllReduceOptions& options,
                                                 std::shared_ptr<MessageMemory> memory);

// The ranges of the array in the order in which that exchange's finish writes their means. Some may be empty;
// ChunkCallbacks are not called for those.
NARROWCAST_EXPORT std::vector<ElementRange> result_ranges(Route route, const AllReduceOptions& options);

}  // namespace narrowcast::collectives
