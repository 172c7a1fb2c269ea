// How ranks replace an array by its mean over them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include <narrowcast/export.h>
#include "ops/codec/wire/format.h"
#include "ops/codec/wire/rounding.h"
#include "ops/collectives/mean/cost_model.h"
#include "ops/collectives/wire/message_memory.h"
#include "ops/collectives/wire/run.h"
#include "ops/engine/transport.h"

namespace narrowcast::collectives {

// Messages of one array share a rank's channels with those of no other array of the same job.
inline constexpr int64_t kChannelsPerArray = engine::Transport::kChannels / 2;

struct MeanOptions {
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t numel = 0;
  WireFormat format = WireFormat::kFp32;
  int64_t first_channel = 0;  // Of the kChannelsPerArray that are this array's own.
};

// Error feedback (ArraySegment in ops/collectives/wire/run_codec.h), or null. Both are float32 and, like the array, 1-D
// and contiguous.
struct Residuals {
  float* own = nullptr;   // [numel]: what receivers lack of this rank's array.
  float* mean = nullptr;  // [numel of this rank's shard]: what they lack of the mean that this rank sends.
};

// One call: what differs from step to step.
struct MeanCall {
  at::Tensor array;  // [numel] on the CPU, contiguous, float32, float64, bfloat16 or float16.
  codec::wire::Rounding rounding;
  Residuals residuals;
};

// The part of an engine::Job that concerns one array: start, advance and finish are called as Job's are, and may be
// called again when finish has returned. Afterwards every rank holds the same bits.
class MeanExchange {
 public:
  virtual ~MeanExchange() = default;

  // Bytes that this rank sends per call, to all peers together.
  virtual int64_t payload_bytes() const = 0;

  virtual void start(engine::Transport& transport, MeanCall call) = 0;
  virtual void advance(engine::Transport& /*transport*/) {}
  virtual void finish(engine::Transport& transport) = 0;
};

// The exchange that goes `route`; its messages lie in `memory`.
std::unique_ptr<MeanExchange> make_mean_exchange(Route route, const MeanOptions& options,
                                                 std::shared_ptr<MessageMemory> memory);

// The elements of which `rank` sends the mean in two shots.
NARROWCAST_EXPORT Segment shard_of(int64_t rank, int64_t world_size, int64_t numel);

// The random numbers of what `rank` sends in `hop` (0 or 1): other ranks and hops round by others.
codec::wire::Rounding rounding_of(codec::wire::Rounding rounding, int64_t rank, int64_t hop);

}  // namespace narrowcast::collectives
