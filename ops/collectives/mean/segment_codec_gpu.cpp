// Segments of CUDA tensors: tensors to pointers, on the current stream of their device.
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>

#include "ops/collectives/mean/segment_codec.h"
#include "ops/cuda/tensor_arguments.h"
#include "ops/cuda/wire/wire_kernels.h"

namespace narrowcast::collectives::gpu {
namespace {

cuda::FloatType type_of(const ArraySegment& segment) { return cuda::float_type_of(segment.array.scalar_type()); }

void* elements_of(const ArraySegment& segment) {
  return static_cast<uint8_t*>(segment.array.mutable_data_ptr()) + segment.range.begin * segment.array.element_size();
}

cuda::Shards shards_of(const ShardSlots& slots, const ArraySegment& segment) {
  const cuda::Shards shards = cuda::shards_of(segment.range.numel, slots.shards, slots.left_out, slots.stride);
  return cuda::chunk_of(shards, slots.chunk, slots.chunks);
}

cuda::RankParts parts_of(const RankMessages& messages, const ArraySegment& segment) {
  cuda::RankParts parts{.type = type_of(segment), .own = elements_of(segment), .n = segment.range.numel};
  cuda::place_messages(messages, parts);
  return parts;
}

}  // namespace

void encode_shards(const WireCoding& coding, const ArraySegment& segment, const ShardSlots& slots, uint8_t* messages) {
  const c10::cuda::CUDAGuard guard(segment.array.device());
  cuda::wire_encode(coding.format,
                    {.type = type_of(segment),
                     .x = elements_of(segment),
                     .n = segment.range.numel,
                     .residual = segment.residual,
                     .rounding = coding.rounding,
                     .message = messages,
                     .shards = shards_of(slots, segment)},
                    c10::cuda::getCurrentCUDAStream());
}

void decode_shards(WireFormat format, const uint8_t* messages, const ShardSlots& slots, const ArraySegment& segment) {
  const c10::cuda::CUDAGuard guard(segment.array.device());
  cuda::wire_decode(format,
                    {.message = messages,
                     .n = segment.range.numel,
                     .type = type_of(segment),
                     .out = elements_of(segment),
                     .shards = shards_of(slots, segment)},
                    c10::cuda::getCurrentCUDAStream());
}

void average_segments(WireFormat format, const RankMessages& messages, const ArraySegment& segment) {
  const c10::cuda::CUDAGuard guard(segment.array.device());
  cuda::wire_average(format, {.parts = parts_of(messages, segment), .mean = elements_of(segment)},
                     c10::cuda::getCurrentCUDAStream());
}

void average_and_encode_segments(const WireCoding& coding, const RankMessages& messages, const ArraySegment& segment,
                                 float* mean_residual, uint8_t* message) {
  const c10::cuda::CUDAGuard guard(segment.array.device());
  cuda::AverageEncodeArguments arguments{.parts = parts_of(messages, segment),
                                         .mean_residual = mean_residual,
                                         .rounding = coding.rounding,
                                         .message = message};
  arguments.parts.own_residual = segment.residual;
  cuda::wire_average_encode(coding.format, arguments, c10::cuda::getCurrentCUDAStream());
}

}  // namespace narrowcast::collectives::gpu
