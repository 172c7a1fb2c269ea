// Segments of a tensor as messages in a wire format (docs/wire_format.md), and back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include <narrowcast/wire_format.h>
#include "ops/codec/wire_format.h"
#include "ops/codec/wire_rounding.h"
#include "ops/collectives/all_reduce/array/element_order.h"
#include "ops/collectives/all_reduce/array/segments.h"
#include "ops/collectives/all_reduce/codec/codec.h"

namespace narrowcast::collectives {

// A segment of a contiguous CPU or CUDA tensor of float32, float64, bfloat16 or float16, from a multiple of
// cpu::kWireGrain on. Its message has encoded_size(range.numel) bytes.
struct ArraySegment {
  at::Tensor array;
  Segment range;  // It is of the array's elements, in `order`.
  // Error feedback: null, or range.numel numbers that are added to the elements when they are sent, and then replaced
  // by what the receivers lack: the sum minus what its message says, or 0 where the segment goes into the message of a
  // mean. Where that message is not finite they stay: one NaN in a gradient is no NaN in all later ones.
  float* residual = nullptr;
  ElementOrder order = {};  // On a GPU, and of messages of shards, the array's own.
};

// Where the messages of an array's shards, which are cut(numel, shards), lie: one in each slot, in the order of shards.
// Every slot begins `stride` bytes after the one before. Or those of a chunk of every shard s: of that part of
// cut(s, chunks).
struct ShardSlots {
  int64_t shards = 1;
  int64_t left_out = 1;  // The shard that has no slot; `shards` for none.
  int64_t stride = 0;
  int64_t chunk = 0;
  int64_t chunks = 1;
};

// The segment's messages by rank. Null for the one rank whose part is the array's own segment, or for none.
using RankMessages = std::vector<const uint8_t*>;

// Encodes and decodes segments in one wire format on one kind of device. It holds no state; any thread may call it.
//
// On the CPU work is split over ATen's threads at multiples of cpu::kWireGrain, which changes no bit. On a GPU each
// function enqueues one kernel, in variable formats several, on the current stream of the tensor's device and does not
// wait: the caller keeps everything alive until the stream is there, and all pointers are to that device. The bytes are
// the same on all devices and, but for the bits of a NaN, so are the numbers.
class WireCodec {
 public:
  explicit WireCodec(WireFormat format) : format_(format) {}
  virtual ~WireCodec() = default;
  WireCodec(const WireCodec&) = delete;
  WireCodec& operator=(const WireCodec&) = delete;

  WireFormat format() const { return format_; }

  // Writes the message of the segment. The position of `rounding` is the segment's first element.
  virtual void encode(const codec::wire::Rounding& rounding, const ArraySegment& segment, uint8_t* message) const = 0;

  // Writes the segment that the message says, rounded to the array's dtype.
  virtual void decode(const uint8_t* message, const ArraySegment& segment) const = 0;

  // Writes the mean over ranks to the segment, summed in float32 in the order of ranks, and rounded to the array's
  // dtype. On a GPU messages of neighbouring ranks must lie equally far from each other; so for the next one.
  virtual void average(const RankMessages& messages, const ArraySegment& segment) const = 0;

  // Writes the message of that mean and leaves the array as it is. `mean_residual` is to the mean what
  // segment.residual is to the segment.
  virtual void average_and_encode(const codec::wire::Rounding& rounding, const RankMessages& messages,
                                  const ArraySegment& segment, float* mean_residual, uint8_t* message) const = 0;

  // Writes the messages of the shards of a segment that is a whole array. Rounds as one message of it would. By itself
  // shard after shard.
  virtual void encode_shards(const codec::wire::Rounding& rounding, const ArraySegment& whole, const ShardSlots& slots,
                             uint8_t* messages) const;

  // Writes the shards that have slots to a whole array. By itself shard after shard.
  virtual void decode_shards(const uint8_t* messages, const ShardSlots& slots, const ArraySegment& whole) const;

 private:
  const WireFormat format_;
};

// A codec of each format.
class WireCodecs {
 public:
  // Fixed and Variable are the codecs of formats of the one kind and of the other.
  template <class Fixed, class Variable>
  static WireCodecs make() {
    WireCodecs all;
    for (const WireFormat format : kWireFormats) {
      codec::wire::is_variable(format) ? all.codecs_.push_back(std::make_unique<Variable>(format))
                                       : all.codecs_.push_back(std::make_unique<Fixed>(format));
    }
    return all;
  }

  const WireCodec& at(WireFormat format) const;

 private:
  std::vector<std::unique_ptr<WireCodec>> codecs_;
};

// The codec of a format for arrays on devices of that type; it lives as long as the process. c10::Error for GPUs in a
// build without CUDA.
const WireCodec& wire_codec(WireFormat format, at::DeviceType device);

namespace gpu {
const WireCodec& wire_codec(WireFormat format);
}

// Copies a segment of a float32 CPU tensor to one of as many elements of another that overlaps it nowhere, either in
// its order. Long ones go past the caches: it takes three quarters of the time of at::Tensor::copy_.
void copy_segment(const ArraySegment& from, const ArraySegment& to);

// A segment of an array that `rank` sends: its own numbers in the first hop, and in two shots a mean in the second.
struct SentSegment {
  int64_t rank = 0;
  Segment range;            // It begins at a multiple of cpu::kWireGrain,
  ElementOrder order = {};  // in this order.
};

// Writes the message of this rank's own numbers, with the call's rounding and error feedback.
void encode_own(const WireCodec& codec, const SentSegment& sent, const AllReduceCall& call, uint8_t* message);

// Writes the messages of the shards of this rank's whole array.
void encode_own_shards(const WireCodec& codec, const SentSegment& whole, const AllReduceCall& call,
                       const ShardSlots& slots, uint8_t* messages);

// Writes the message of the mean of a segment within this rank's shard, with the call's rounding and error feedback.
// `parts`: what the other ranks sent of it; this rank's own part is in the array.
void encode_mean(const WireCodec& codec, const SentSegment& sent, const AllReduceCall& call, const RankMessages& parts,
                 uint8_t* message);

// The random numbers of what `rank` sends in `hop` (0 or 1): other ranks and hops round by others.
codec::wire::Rounding rounding_of(codec::wire::Rounding rounding, int64_t rank, int64_t hop);

// One shot's codec in a wire format, for what `rank` sends of arrays on devices of that type, in that order.
std::unique_ptr<AllReduceCodec> one_shot_codec(WireFormat format, at::DeviceType device, int64_t rank,
                                               const ElementOrder& order = {});

}  // namespace narrowcast::collectives
