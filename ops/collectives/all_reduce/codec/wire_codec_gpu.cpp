// Codecs of CUDA tensors: they pass pointers to kernels on the current stream of the tensors' device.
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>
#include <memory>

#include "ops/collectives/all_reduce/codec/wire_codec.h"
#include "ops/cuda/launch/tensor_arguments.h"
#include "ops/cuda/wire/sparse_kernels.h"
#include "ops/cuda/wire/variable_kernels.h"
#include "ops/cuda/wire/wire_kernels.h"

namespace narrowcast::collectives {
namespace {

using codec::wire::Rounding;

cuda::FloatType type_of(const ArraySlice& slice) { return cuda::float_type_of(slice.array.scalar_type()); }

void* elements_of(const ArraySlice& slice) {
  return static_cast<uint8_t*>(slice.array.mutable_data_ptr()) + slice.range.begin * slice.array.element_size();
}

cuda::Shards shards_of(const ShardSlots& slots, const ArraySlice& slice) {
  const cuda::Shards shards = cuda::shards_of(slice.range.numel, slots.shards, slots.left_out, slots.stride);
  return cuda::chunk_of(shards, slots.chunk, slots.chunks);
}

cuda::RankParts parts_of(const RankMessages& messages, const ArraySlice& slice) {
  cuda::RankParts parts{.type = type_of(slice), .own = elements_of(slice), .n = slice.range.numel};
  cuda::place_messages(messages, parts);
  return parts;
}

int bits_of(WireFormat format) { return static_cast<int>(codec::wire::code_bits(format)); }

// Scratch memory. Once it is destroyed, the allocator reuses it only for work enqueued later on the current stream.
at::Tensor scratch_of(const ArraySlice& slice, int64_t numel, at::ScalarType dtype = at::kByte) {
  return at::empty({numel}, slice.array.options().dtype(dtype));
}

void encode_variable(WireFormat format, const ArraySlice& slice, cuda::VariableEncodeArguments arguments) {
  arguments.bits_per_element = bits_of(format);
  arguments.n = slice.range.numel;
  const at::Tensor scratch = scratch_of(slice, cuda::variable_encode_scratch(arguments.n));
  arguments.scratch = scratch.mutable_data_ptr();
  cuda::variable_encode(arguments, c10::cuda::getCurrentCUDAStream());
}

// Writes the mean to `mean`, of that type.
void average_variable(WireFormat format, const cuda::RankParts& parts, const ArraySlice& slice, cuda::FloatType type,
                      void* mean) {
  const at::Tensor scratch = scratch_of(slice, cuda::variable_average_scratch(parts.n, parts.ranks));
  cuda::variable_average({.bits_per_element = bits_of(format),
                          .parts = parts,
                          .type = type,
                          .mean = mean,
                          .scratch = scratch.mutable_data_ptr()},
                         c10::cuda::getCurrentCUDAStream());
}

// Formats whose messages can be split: one kernel encodes or decodes all shards.
class FixedGpuCodec final : public WireCodec {
 public:
  using WireCodec::WireCodec;

  void encode(const Rounding& rounding, const ArraySlice& slice, uint8_t* message) const override {
    encode_shards(rounding, slice, {}, message);
  }

  void decode(const uint8_t* message, const ArraySlice& slice) const override { decode_shards(message, {}, slice); }

  void reduce(const RankMessages& messages, const ArraySlice& slice, Reduction reduction) const override {
    const c10::cuda::CUDAGuard guard(slice.array.device());
    cuda::RankParts parts = parts_of(messages, slice);
    parts.reduction = reduction;
    cuda::wire_average(format(), {.parts = parts, .mean = elements_of(slice)}, c10::cuda::getCurrentCUDAStream());
  }

  void average_and_encode(const Rounding& rounding, const RankMessages& messages, const ArraySlice& slice,
                          float* mean_residual, uint8_t* message) const override {
    const c10::cuda::CUDAGuard guard(slice.array.device());
    cuda::RankParts parts = parts_of(messages, slice);
    parts.own_residual = slice.residual;
    cuda::wire_average_encode(
        format(), {.parts = parts, .mean_residual = mean_residual, .rounding = rounding, .message = message},
        c10::cuda::getCurrentCUDAStream());
  }

  void encode_shards(const Rounding& rounding, const ArraySlice& slice, const ShardSlots& slots,
                     uint8_t* messages) const override {
    const c10::cuda::CUDAGuard guard(slice.array.device());
    cuda::wire_encode(format(),
                      {.type = type_of(slice),
                       .x = elements_of(slice),
                       .n = slice.range.numel,
                       .residual = slice.residual,
                       .rounding = rounding,
                       .message = messages,
                       .shards = shards_of(slots, slice)},
                      c10::cuda::getCurrentCUDAStream());
  }

  void decode_shards(const uint8_t* messages, const ShardSlots& slots, const ArraySlice& slice) const override {
    const c10::cuda::CUDAGuard guard(slice.array.device());
    cuda::wire_decode(format(),
                      {.message = messages,
                       .n = slice.range.numel,
                       .type = type_of(slice),
                       .out = elements_of(slice),
                       .shards = shards_of(slots, slice)},
                      c10::cuda::getCurrentCUDAStream());
  }
};

// Formats whose messages have one step for all elements: shards are encoded one after the other.
class VariableGpuCodec final : public WireCodec {
 public:
  using WireCodec::WireCodec;

  void encode(const Rounding& rounding, const ArraySlice& slice, uint8_t* message) const override {
    const c10::cuda::CUDAGuard guard(slice.array.device());
    encode_variable(format(), slice,
                    {.type = type_of(slice),
                     .x = elements_of(slice),
                     .residual = slice.residual,
                     .rounding = rounding,
                     .message = message});
  }

  void decode(const uint8_t* message, const ArraySlice& slice) const override {
    const c10::cuda::CUDAGuard guard(slice.array.device());
    average_variable(format(), cuda::only_message(message, slice.range.numel), slice, type_of(slice),
                     elements_of(slice));
  }

  void reduce(const RankMessages& messages, const ArraySlice& slice, Reduction reduction) const override {
    const c10::cuda::CUDAGuard guard(slice.array.device());
    cuda::RankParts parts = parts_of(messages, slice);
    parts.reduction = reduction;
    average_variable(format(), parts, slice, type_of(slice), elements_of(slice));
  }

  void average_and_encode(const Rounding& rounding, const RankMessages& messages, const ArraySlice& slice,
                          float* mean_residual, uint8_t* message) const override {
    const c10::cuda::CUDAGuard guard(slice.array.device());
    cuda::RankParts parts = parts_of(messages, slice);
    parts.own_residual = slice.residual;
    // All means must exist before the first one can be encoded.
    const at::Tensor means = scratch_of(slice, slice.range.numel, at::kFloat);
    average_variable(format(), parts, slice, cuda::FloatType::kFloat32, means.mutable_data_ptr());
    encode_variable(format(), slice,
                    {.x = means.const_data_ptr(),
                     .residual = mean_residual,
                     .spent = slice.residual,
                     .rounding = rounding,
                     .message = message});
  }
};

// Formats whose blocks begin with the message: shards are encoded one after the other.
class SparseGpuCodec final : public WireCodec {
 public:
  using WireCodec::WireCodec;

  void encode(const Rounding& /*rounding*/, const ArraySlice& slice, uint8_t* message) const override {
    const c10::cuda::CUDAGuard guard(slice.array.device());
    encode_sparse(slice,
                  {.type = type_of(slice), .x = elements_of(slice), .residual = slice.residual, .message = message});
  }

  void decode(const uint8_t* message, const ArraySlice& slice) const override {
    const c10::cuda::CUDAGuard guard(slice.array.device());
    average(cuda::only_message(message, slice.range.numel), type_of(slice), elements_of(slice));
  }

  void reduce(const RankMessages& messages, const ArraySlice& slice, Reduction reduction) const override {
    const c10::cuda::CUDAGuard guard(slice.array.device());
    cuda::RankParts parts = parts_of(messages, slice);
    parts.reduction = reduction;
    average(parts, type_of(slice), elements_of(slice));
  }

  void average_and_encode(const Rounding& /*rounding*/, const RankMessages& messages, const ArraySlice& slice,
                          float* mean_residual, uint8_t* message) const override {
    const c10::cuda::CUDAGuard guard(slice.array.device());
    cuda::RankParts parts = parts_of(messages, slice);
    parts.own_residual = slice.residual;
    const at::Tensor means = scratch_of(slice, slice.range.numel, at::kFloat);
    average(parts, cuda::FloatType::kFloat32, means.mutable_data_ptr());
    encode_sparse(
        slice, {.x = means.const_data_ptr(), .residual = mean_residual, .spent = slice.residual, .message = message});
  }

 private:
  int per_mille() const { return codec::wire::kept_per_mille(format()); }

  void encode_sparse(const ArraySlice& slice, cuda::SparseEncodeArguments arguments) const {
    arguments.per_mille = per_mille();
    arguments.n = slice.range.numel;
    cuda::sparse_encode(arguments, c10::cuda::getCurrentCUDAStream());
  }

  // Writes the mean to `mean`, of that type.
  void average(const cuda::RankParts& parts, cuda::FloatType type, void* mean) const {
    cuda::sparse_average({.per_mille = per_mille(), .parts = parts, .type = type, .mean = mean},
                         c10::cuda::getCurrentCUDAStream());
  }
};

}  // namespace

std::unique_ptr<const WireCodec> gpu::make_wire_codec(WireFormat format) {
  if (codec::wire::is_sparse(format)) {
    return std::make_unique<SparseGpuCodec>(format);
  }
  if (codec::wire::is_variable(format)) {
    return std::make_unique<VariableGpuCodec>(format);
  }
  return std::make_unique<FixedGpuCodec>(format);
}

}  // namespace narrowcast::collectives
