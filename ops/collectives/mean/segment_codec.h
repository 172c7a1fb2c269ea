// Segments of a tensor as messages in a wire format (docs/wire_format.md), and back.
//
// On the CPU work is split over ATen's threads at multiples of cpu::kWireGrain, which changes no bit. On a GPU it is
// enqueued on the current stream; all pointers are then to the tensor's device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include <narrowcast/wire_format.h>
#include "ops/codec/wire_format.h"
#include "ops/codec/wire_rounding.h"
#include "ops/collectives/mean/element_order.h"
#include "ops/collectives/mean/mean_exchange.h"
#include "ops/collectives/mean/segments.h"

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

struct WireCoding {
  WireFormat format = WireFormat::kFp32;
  codec::wire::Rounding rounding;  // Its position is the segment's first element.
};

// Writes the message of the segment.
void encode_segment(const WireCoding& coding, const ArraySegment& segment, uint8_t* message);

// Writes the segment that the message says, rounded to the array's dtype.
void decode_segment(WireFormat format, const uint8_t* message, const ArraySegment& segment);

// Copies a segment of a float32 CPU tensor to one of as many elements of another that overlaps it nowhere, either in
// its order. Long ones go past the caches: it takes three quarters of the time of at::Tensor::copy_.
void copy_segment(const ArraySegment& from, const ArraySegment& to);

// Where the messages of an array's shards, which are cut(numel, shards), lie: one in each slot, in the order of shards.
// Every slot begins `stride` bytes behind the one before. Or those of a chunk of every shard s: of that part of
// cut(s, chunks).
struct ShardSlots {
  int64_t shards = 1;
  int64_t left_out = 1;  // The shard that has no slot; `shards` for none.
  int64_t stride = 0;
  int64_t chunk = 0;
  int64_t chunks = 1;
};

// Writes the messages of the shards of a segment that is a whole array. Rounds as one message of it would.
void encode_shards(const WireCoding& coding, const ArraySegment& whole, const ShardSlots& slots, uint8_t* messages);

// Writes the shards that have slots to a whole array.
void decode_shards(WireFormat format, const uint8_t* messages, const ShardSlots& slots, const ArraySegment& whole);

// The segment's messages by rank. Null for the one rank whose part is the array's own segment, or for none.
using RankMessages = std::vector<const uint8_t*>;

// Writes the mean over ranks to the segment, summed in float32 in the order of ranks, and rounded to the array's dtype.
void average_segments(WireFormat format, const RankMessages& messages, const ArraySegment& segment);

// Writes the message of that mean and leaves the array as it is. `mean_residual` is to the mean what segment.residual
// is to the segment.
void average_and_encode_segments(const WireCoding& coding, const RankMessages& messages, const ArraySegment& segment,
                                 float* mean_residual, uint8_t* message);

// The same for segments of CUDA tensors, each one shard or, but in variable formats, cut into several: the functions
// above call these. The same bytes and, but for the bits of a NaN, the same numbers as on the CPU. Each enqueues one
// kernel, in variable formats several, on the current stream of the tensor's device and does not wait: the caller keeps
// everything alive until the stream is there. In a build without CUDA there are no such tensors, and the functions
// throw.
namespace gpu {

void encode_shards(const WireCoding& coding, const ArraySegment& segment, const ShardSlots& slots, uint8_t* messages);

void decode_shards(WireFormat format, const uint8_t* messages, const ShardSlots& slots, const ArraySegment& segment);

// Messages of neighbouring ranks must lie equally far from each other; so for the next one.
void average_segments(WireFormat format, const RankMessages& messages, const ArraySegment& segment);

void average_and_encode_segments(const WireCoding& coding, const RankMessages& messages, const ArraySegment& segment,
                                 float* mean_residual, uint8_t* message);

}  // namespace gpu

// What a rank sends in a wire format: its own numbers in the first hop, and in two shots a mean in the second.

// The codec of one shot in a wire format, for what `rank` sends of arrays in that order. It works on any device.
std::unique_ptr<MeanCodec> wire_codec(WireFormat format, int64_t rank, const ElementOrder& order = {});

// A segment of an array that `rank` sends in `format`.
struct SentSegment {
  WireFormat format = WireFormat::kFp32;
  int64_t rank = 0;
  Segment range;            // It begins at a multiple of cpu::kWireGrain,
  ElementOrder order = {};  // in this order.
};

// Writes the message of this rank's own numbers, with the call's rounding and error feedback.
void encode_own(const SentSegment& sent, const MeanCall& call, uint8_t* message);

// Writes the messages of the shards of this rank's whole array.
void encode_own_shards(const SentSegment& whole, const MeanCall& call, const ShardSlots& slots, uint8_t* messages);

// Writes the message of the mean of a segment within this rank's shard, with the call's rounding and error feedback.
// `parts`: what the other ranks sent of it; this rank's own part is in the array.
void encode_mean(const SentSegment& sent, const MeanCall& call, const RankMessages& parts, uint8_t* message);

// The random numbers of what `rank` sends in `hop` (0 or 1): other ranks and hops round by others.
codec::wire::Rounding rounding_of(codec::wire::Rounding rounding, int64_t rank, int64_t hop);

}  // namespace narrowcast::collectives
