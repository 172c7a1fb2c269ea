// Segments of CUDA tensors: tensors to pointers, on the current stream of their device.
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>

#include "ops/collectives/mean/segment_codec.h"
#include "ops/cuda/tensor_arguments.h"
#include "ops/cuda/wire/variable_kernels.h"
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

int bits_of(WireFormat format) { return static_cast<int>(codec::wire::code_bits(format)); }

// Memory that is given away when it is destroyed: only to what is enqueued on the current stream later.
at::Tensor scratch_of(const ArraySegment& segment, int64_t numel, at::ScalarType dtype = at::kByte) {
  return at::empty({numel}, segment.array.options().dtype(dtype));
}

void encode_variable(WireFormat format, const ArraySegment& segment, cuda::VariableEncodeArguments arguments) {
  arguments.bits_per_element = bits_of(format);
  arguments.n = segment.range.numel;
  const at::Tensor scratch = scratch_of(segment, cuda::variable_encode_scratch(arguments.n));
  arguments.scratch = scratch.mutable_data_ptr();
  cuda::variable_encode(arguments, c10::cuda::getCurrentCUDAStream());
}

// To `mean`, of that type.
void average_variable(WireFormat format, const cuda::RankParts& parts, const ArraySegment& segment,
                      cuda::FloatType type, void* mean) {
  const at::Tensor scratch = scratch_of(segment, cuda::variable_average_scratch(parts.n, parts.ranks));
  cuda::variable_average({.bits_per_element = bits_of(format),
                          .parts = parts,
                          .type = type,
                          .mean = mean,
                          .scratch = scratch.mutable_data_ptr()},
                         c10::cuda::getCurrentCUDAStream());
}

void check_one_message(const ShardSlots& slots) {
  TORCH_INTERNAL_ASSERT(slots.shards == 1 && slots.chunks == 1, "a message in a variable format has one shard");
}

}  // namespace

void encode_shards(const WireCoding& coding, const ArraySegment& segment, const ShardSlots& slots, uint8_t* messages) {
  const c10::cuda::CUDAGuard guard(segment.array.device());
  if (codec::wire::is_variable(coding.format)) {
    check_one_message(slots);
    return encode_variable(coding.format, segment,
                           {.type = type_of(segment),
                            .x = elements_of(segment),
                            .residual = segment.residual,
                            .rounding = coding.rounding,
                            .message = messages});
  }
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
  if (codec::wire::is_variable(format)) {
    check_one_message(slots);
    return average_variable(format, cuda::only_message(messages, segment.range.numel), segment, type_of(segment),
                            elements_of(segment));
  }
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
  const cuda::RankParts parts = parts_of(messages, segment);
  if (codec::wire::is_variable(format)) {
    return average_variable(format, parts, segment, type_of(segment), elements_of(segment));
  }
  cuda::wire_average(format, {.parts = parts, .mean = elements_of(segment)}, c10::cuda::getCurrentCUDAStream());
}

void average_and_encode_segments(const WireCoding& coding, const RankMessages& messages, const ArraySegment& segment,
                                 float* mean_residual, uint8_t* message) {
  const c10::cuda::CUDAGuard guard(segment.array.device());
  cuda::RankParts parts = parts_of(messages, segment);
  parts.own_residual = segment.residual;
  if (codec::wire::is_variable(coding.format)) {
    // All means are there before the first of them can be written.
    const at::Tensor means = scratch_of(segment, segment.range.numel, at::kFloat);
    average_variable(coding.format, parts, segment, cuda::FloatType::kFloat32, means.mutable_data_ptr());
    return encode_variable(coding.format, segment,
                           {.x = means.const_data_ptr(),
                            .residual = mean_residual,
                            .spent = segment.residual,
                            .rounding = coding.rounding,
                            .message = message});
  }
  cuda::wire_average_encode(
      coding.format, {.parts = parts, .mean_residual = mean_residual, .rounding = coding.rounding, .message = message},
      c10::cuda::getCurrentCUDAStream());
}

}  // namespace narrowcast::collectives::gpu
