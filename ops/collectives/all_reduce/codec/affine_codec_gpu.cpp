// The reference hooks' messages for CUDA tensors, on the current stream of their device.
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "ops/collectives/all_reduce/codec/affine_codec.h"
#include "ops/collectives/all_reduce/codec/codec.h"
#include "ops/cuda/affine_uint8/affine_message.h"
#include "ops/cuda/launch/tensor_arguments.h"
#include "ops/cuda/wire/wire_kernels.h"

namespace narrowcast::collectives::gpu {
namespace {

class AffineCodec final : public AllReduceCodec {
 public:
  explicit AffineCodec(std::optional<int64_t> channel_size) : channel_size_(channel_size) {}

  int64_t grain() const override { return channel_size_.value_or(1); }

  int64_t message_bytes(const ElementRange& chunk) const override {
    return channels_of(chunk).header_bytes() + chunk.numel;
  }

  void encode(const AllReduceCall& call, const ElementRange& chunk, const at::Tensor& message) override {
    const c10::cuda::CUDAGuard guard(call.array.device());
    const cuda::AffineChannels channels = channels_of(chunk);
    const at::Tensor ranges = at::empty({cuda::affine_ranges_bytes(channels)}, message.options());
    cuda::launch_affine_encode({.type = cuda::float_type_of(call.array.scalar_type()),
                                .x = elements_of(call, chunk),
                                .channels = channels,
                                .ranges = ranges.mutable_data_ptr(),
                                .message = message.mutable_data_ptr<uint8_t>()},
                               c10::cuda::getCurrentCUDAStream());
  }

  void average(const AllReduceCall& call, const ElementRange& chunk, const std::vector<at::Tensor>& messages) override {
    const c10::cuda::CUDAGuard guard(call.array.device());
    cuda::launch_affine_average({.messages = messages[0].const_data_ptr<uint8_t>(),
                                 .stride = stride_of(messages),
                                 .ranks = static_cast<int64_t>(messages.size()),
                                 .type = cuda::float_type_of(call.array.scalar_type()),
                                 .mean = elements_of(call, chunk),
                                 .channels = channels_of(chunk)},
                                c10::cuda::getCurrentCUDAStream());
  }

 private:
  cuda::AffineChannels channels_of(const ElementRange& chunk) const {
    const int64_t whole = std::max<int64_t>(1, chunk.numel);
    return {chunk.numel, std::min(channel_size_.value_or(whole), whole)};
  }

  static void* elements_of(const AllReduceCall& call, const ElementRange& chunk) {
    return static_cast<uint8_t*>(call.array.mutable_data_ptr()) + chunk.begin * call.array.element_size();
  }

  // The distance between messages, which a StreamAllReduce places side by side.
  static int64_t stride_of(const std::vector<at::Tensor>& messages) {
    std::vector<const uint8_t*> by_rank;
    for (const at::Tensor& message : messages) by_rank.push_back(message.const_data_ptr<uint8_t>());
    cuda::RankParts parts;
    cuda::place_messages(by_rank, parts);
    return parts.stride;
  }

  const std::optional<int64_t> channel_size_;
};

}  // namespace

std::unique_ptr<AllReduceCodec> affine_codec(std::optional<int64_t> channel_size) {
  return std::make_unique<AffineCodec>(channel_size);
}

}  // namespace narrowcast::collectives::gpu
