// What a rank sends in a wire format: its own numbers in the first hop, and in two shots a mean in the second.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include <narrowcast/wire_format.h>
#include "ops/codec/wire_rounding.h"
#include "ops/collectives/mean/mean_exchange.h"
#include "ops/collectives/mean/segment_codec.h"
#include "ops/collectives/mean/segments.h"

namespace narrowcast::collectives {

// The codec of one shot in a wire format, for what `rank` sends. It works on any device.
std::unique_ptr<MeanCodec> wire_codec(WireFormat format, int64_t rank);

// A segment of an array that `rank` sends in `format`.
struct SentSegment {
  WireFormat format = WireFormat::kFp32;
  int64_t rank = 0;
  Segment range;  // It begins at a multiple of cpu::kWireGrain.
};

// Writes the message of this rank's own numbers, with the call's rounding and error feedback.
void encode_own(const SentSegment& sent, const MeanCall& call, uint8_t* message);

// Writes the message of the mean of a segment within this rank's shard, with the call's rounding and error feedback.
// `parts`: what the other ranks sent of it; this rank's own part is in the array.
void encode_mean(const SentSegment& sent, const MeanCall& call, const RankMessages& parts, uint8_t* message);

// The random numbers of what `rank` sends in `hop` (0 or 1): other ranks and hops round by others.
codec::wire::Rounding rounding_of(codec::wire::Rounding rounding, int64_t rank, int64_t hop);

}  // namespace narrowcast::collectives
