// Slices of a tensor as messages in a wire format (docs/reference/wire-format.md): encoding and decoding.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include <narrowcast/export.h>
#include <narrowcast/reduction.h>
#include <narrowcast/wire_format.h>
#include "ops/codec/wire_format.h"
#include "ops/codec/wire_rounding.h"
#include "ops/collectives/all_reduce/array/element_range.h"
#include "ops/collectives/all_reduce/codec/codec.h"
#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::collectives {

// A slice of a contiguous CPU or CUDA tensor of float32, float64, bfloat16 or float16. It begins at a multiple of
// cpu::kWireGrain. Its message has encoded_size(range.numel) bytes.
struct ArraySlice {
  at::Tensor array;
  ElementRange range;  // Elements of the array, counted in `order`.
  // Error feedback: null, or range.numel values. They are added to the elements when these are sent. Afterwards they
  // are the rounding error, sum minus decoded message, or 0 if the slice goes into the message of a mean. If the
  // message is not finite they stay unchanged, so that one NaN in a gradient does not reach later steps.
  float* residual = nullptr;
  cpu::GrainOrder order = {};  // Must be the identity on a GPU, and for messages of shards.
};

// The slots of the messages of an array's shards, cut(numel, shards): one for each, in the order of shards. Every slot
// begins `stride` bytes after the one before. With several chunks, the slot of shard s holds only part `chunk` of
// cut(s, chunks).
struct ShardSlots {
  int64_t shards = 1;
  int64_t left_out = 1;  // The shard that has no slot; `shards` for none.
  int64_t stride = 0;
  int64_t chunk = 0;
  int64_t chunks = 1;
};

// The slice's messages by rank. At most one is null: the rank whose part is the array's own slice.
using RankMessages = std::vector<const uint8_t*>;

// Encodes and decodes slices in one wire format on one kind of device. No call changes it; any thread may call it.
//
// On the CPU, work is split over ATen's threads at multiples of cpu::kWireGrain, which does not change the result. On a
// GPU, each function enqueues one kernel (several in variable formats) on the current stream of the tensor's device,
// and does not wait. The caller keeps everything alive until the stream has run them; all pointers are to that device.
// All devices produce the same bytes and, except for the bits of a NaN, the same values.
class WireCodec {
 public:
  explicit WireCodec(WireFormat format) : format_(format) {}
  virtual ~WireCodec() = default;
  WireCodec(const WireCodec&) = delete;
  WireCodec& operator=(const WireCodec&) = delete;

  WireFormat format() const { return format_; }

  // Encodes the slice. The position of `rounding` is the slice's first element.
  virtual void encode(const codec::wire::Rounding& rounding, const ArraySlice& slice, uint8_t* message) const = 0;

  // Decodes the message into the slice, rounded to the array's dtype.
  virtual void decode(const uint8_t* message, const ArraySlice& slice) const = 0;

  // Writes the mean or the sum over ranks to the slice: summed in float32 in the order of ranks, then rounded to the
  // array's dtype. On a GPU, here and in average_and_encode, messages of consecutive ranks must have a constant
  // distance.
  virtual void reduce(const RankMessages& messages, const ArraySlice& slice, Reduction reduction) const = 0;

  void average(const RankMessages& messages, const ArraySlice& slice) const {
    reduce(messages, slice, Reduction::kMean);
  }

  // Encodes that mean and leaves the array unchanged. `mean_residual` is the residual of the mean, as slice.residual
  // is the residual of the slice.
  virtual void average_and_encode(const codec::wire::Rounding& rounding, const RankMessages& messages,
                                  const ArraySlice& slice, float* mean_residual, uint8_t* message) const = 0;

  // Encodes the shards of a slice that is a whole array. Rounds as one message of the whole array would. The default
  // implementation encodes shard after shard.
  virtual void encode_shards(const codec::wire::Rounding& rounding, const ArraySlice& whole, const ShardSlots& slots,
                             uint8_t* messages) const;

  // Decodes the shards that have slots into a whole array. The default implementation decodes shard after shard.
  virtual void decode_shards(const uint8_t* messages, const ShardSlots& slots, const ArraySlice& whole) const;

 private:
  const WireFormat format_;
};

// Makes the codec of a format for arrays on devices of that type; an exchange makes one and keeps it. On the CPU it
// uses the instruction set that is in use now. c10::Error for a GPU in a build without CUDA.
NARROWCAST_EXPORT std::unique_ptr<const WireCodec> make_wire_codec(WireFormat format, at::DeviceType device);

namespace gpu {
std::unique_ptr<const WireCodec> make_wire_codec(WireFormat format);
}

// Copies a slice of a float32 CPU tensor to a slice of the same size in another tensor; the two must not overlap.
// Each slice counts in its order. Long ones bypass the caches, which takes three quarters of the time of
// at::Tensor::copy_.
void copy_slice(const ArraySlice& from, const ArraySlice& to);

// A slice of an array that `rank` sends: its own values in the first hop, a mean in the second hop of two shots.
struct SentRange {
  int64_t rank = 0;
  ElementRange range;          // Begins at a multiple of cpu::kWireGrain,
  cpu::GrainOrder order = {};  // counted in this order.

  // This rank's own values in the call's array, with its error feedback.
  ArraySlice elements(const AllReduceCall& call) const;

  // The call's rounding for the message of hop 0 or 1.
  codec::wire::Rounding rounding(const AllReduceCall& call, int64_t hop) const;
};

// Encodes the mean of a slice within this rank's shard, with the call's rounding and error feedback. `parts`: the
// other ranks' messages of the slice; this rank's own part is in the array.
void encode_mean(const WireCodec& codec, const SentRange& sent, const AllReduceCall& call, const RankMessages& parts,
                 uint8_t* message);

// The random numbers of the messages that `rank` sends in `hop` (0 or 1). They differ between ranks and hops.
codec::wire::Rounding rounding_of(codec::wire::Rounding rounding, int64_t rank, int64_t hop);

// The elements at whose multiples a one-shot array is cut into chunks: a multiple of the format's blocks.
int64_t grain_of(WireFormat format);

// The one-shot codec in a wire format. `rank` sends arrays on devices of that type, in that order.
std::unique_ptr<AllReduceCodec> one_shot_codec(WireFormat format, at::DeviceType device, int64_t rank,
                                               const cpu::GrainOrder& order = {});

}  // namespace narrowcast::collectives
