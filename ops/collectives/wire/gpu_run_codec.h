// The functions of run_codec.h for segments of CUDA tensors: run_codec.h calls them.
// The same bytes and, but for the bits of a NaN, the same numbers as on the CPU.
//
// All pointers are to memory of the tensor's device. Each function enqueues one
// kernel on that device's current stream and does not wait: the caller keeps
// everything alive until the stream is there. In a build without CUDA there are no
// such tensors, and the functions throw.
#pragma once

#include "ops/collectives/wire/run_codec.h"

namespace narrowcast::collectives::gpu {

void encode_segment(const WireCoding& coding, const ArraySegment& segment, uint8_t* message);

void decode_segment(WireFormat format, const uint8_t* message, const ArraySegment& segment);

// At most cuda::kMaxRanks (ops/cuda/wire/wire_arguments.h) ranks, else c10::ValueError; so for the next one.
void average_segments(WireFormat format, const RankMessages& messages, const ArraySegment& segment);

void average_and_encode_segments(const WireCoding& coding, const RankMessages& messages, const ArraySegment& segment,
                                 float* mean_residual, uint8_t* message);

}  // namespace narrowcast::collectives::gpu
