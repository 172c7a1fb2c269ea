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
#include "ops/collectives/link.h"
#include "ops/collectives/mean/element_order.h"
#include "ops/collectives/mean/message_memory.h"
#include "ops/collectives/mean/segments.h"
#include "ops/cpu/wire/wire_kernels.h"
#include "ops/engine/transport.h"

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

// Error feedback (ArraySegment in ops/collectives/mean/segment_codec.h), or null. All are float32 and, like the array,
// 1-D and contiguous.
struct Residuals {
  float* own = nullptr;   // What receivers lack of the elements that this rank sends (SentParts in two_levels.h).
  float* mean = nullptr;  // What they lack of the mean, of the elements whose mean this rank sends.
  std::vector<at::Tensor> memory = {};  // Holds both while the call is in flight, though their owner may be gone.
  // Undefined in one level; else [numel], what is added to this rank's array, but for exact elements. The exchange
  // leaves it where the mean is not finite, to be added again, and 0 elsewhere.
  at::Tensor carried = {};

  // To be called after the exchange, with its mean.
  void take_carried(const at::Tensor& mean) const {
    if (carried.defined()) {
      carried.masked_fill_(mean.isfinite(), 0);
    }
  }
};

// They tell of an array on the CPU whose segments are made while others are sent, and used while others come. Nothing
// is told of empty ones.
struct SegmentCallbacks {
  std::function<void(const Segment& segment)> before_encode = nullptr;  // Right before it is read first.
  std::function<void(const Segment& segment)> after_mean = nullptr;     // Right after its mean is written.

  void prepare(const Segment& segment) const {
    if (before_encode && segment.numel > 0) {
      before_encode(segment);
    }
  }
  void tell(const Segment& segment) const {
    if (after_mean && segment.numel > 0) {
      after_mean(segment);
    }
  }
};

// One call: what differs from step to step.
struct MeanCall {
  at::Tensor array;  // [numel], contiguous, float32, float64, bfloat16 or float16.
  codec::wire::Rounding rounding;
  Residuals residuals;
  SegmentCallbacks callbacks = {};
};

// What one shot makes of an array on its way: its wire format, or what else ranks may want to send each other. An
// object belongs to one exchange, and may keep what it finds between the functions of a call. On the CPU they run on
// the engine's thread, chunk after chunk; on a GPU they enqueue kernels on the current stream, and the whole array is
// one chunk.
class MeanCodec {
 public:
  virtual ~MeanCodec() = default;

  // Elements that stay together: chunks begin at multiples of it. >= 1, and may exceed the array.
  virtual int64_t grain() const = 0;

  // Size of the message of a chunk, the same on all ranks; 0 for one without elements.
  virtual int64_t message_bytes(const Segment& chunk) const = 0;

  // Writes the message of a chunk of call.array: uint8 [message_bytes(chunk)] on the array's device. All chunks that
  // have elements come, in order, before the first is averaged.
  virtual void encode(const MeanCall& call, const Segment& chunk, const at::Tensor& message) = 0;

  // Writes the mean over ranks to the chunk of call.array, given the messages of all ranks, in their order. Chunks come
  // in order.
  virtual void average(const MeanCall& call, const Segment& chunk, const std::vector<at::Tensor>& messages) = 0;
};

// Makes the codec for an array on that device. See segment_codec.h and affine_codec.h.
using MeanCodecFactory = std::function<std::unique_ptr<MeanCodec>(at::Device device)>;

// Messages of one array share a rank's channels with those of no other array of the same job.
inline constexpr int64_t kChannelsPerArray = engine::Transport::kChannels / 2;

struct MeanOptions {
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
class MeanExchange {
 public:
  virtual ~MeanExchange() = default;

  // Bytes that this rank sends per call, to all peers together.
  virtual int64_t payload_bytes() const = 0;

  virtual int64_t advances() const { return 1; }
  virtual bool is_ready() { return false; }

  // Posts every receive, those of later hops included.
  virtual void post_receives(engine::Transport& transport) = 0;
  virtual void start(engine::Transport& transport, MeanCall call) = 0;
  virtual void advance(engine::Transport& /*transport*/) {}
  virtual void finish(engine::Transport& transport) = 0;
};

// The exchange that goes `route`; its messages lie in `memory`.
std::unique_ptr<MeanExchange> make_mean_exchange(Route route, const MeanOptions& options,
                                                 std::shared_ptr<MessageMemory> memory);

// The segments of the array whose means that exchange's finish writes one after the other, in their order. Some may be
// empty, of which SegmentCallbacks tell nothing.
NARROWCAST_EXPORT std::vector<Segment> means_in_order(Route route, const MeanOptions& options);

// Before: rank r holds its own array, cut into the same chunks on every rank.
// start:  with a receive posted for every chunk from every peer, rank r encodes
//         chunk after chunk and sends each to ranks r+1, r+2, ..., r-1.
// finish: chunk after chunk, rank r waits for the messages of all peers and
//         averages those of ranks 0, 1, ..., W-1. Its own part goes through its
//         own message like any other, also where it is alone.
// After:  every rank has computed the same mean from the same bytes.
// The codec says what the messages are, not options.format.
std::unique_ptr<MeanExchange> make_one_shot(const MeanOptions& options, std::unique_ptr<MeanCodec> codec,
                                            std::shared_ptr<MessageMemory> memory);

// As means_in_order, of a codec with that grain.
std::vector<Segment> one_shot_means(int64_t numel, int64_t grain);

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
std::unique_ptr<MeanExchange> make_two_shot(const MeanOptions& options, std::shared_ptr<MessageMemory> memory);

// Into how many chunks each of those shards is cut. In variable formats, whose messages have steps of their own,
// whoever wants the same bits cuts them alike.
int64_t two_shot_chunks(int64_t numel, int64_t world_size, WireFormat format);

// As means_in_order.
std::vector<Segment> two_shot_means(const MeanOptions& options);

// The elements of which `rank` sends the mean in two shots.
inline Segment shard_of(int64_t rank, int64_t world_size, int64_t numel) {
  return part_of({0, numel}, rank, world_size, cpu::kWireGrain);
}

}  // namespace narrowcast::collectives
