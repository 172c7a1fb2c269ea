// The reference hooks' codec on a GPU, compared with the operators there, which are PyTorch's functions. Needs a GPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include <narrowcast/affine_uint8.h>
#include "ops/collectives/all_reduce/codec/affine_codec.h"
#include "ops/collectives/all_reduce/stream/stream_exchange.h"
#include "tests/ops/affine_uint8/reference.h"
#include "tests/support/devices.h"

namespace narrowcast::collectives {
namespace {

using test::same_bits;

// The mean of the ranks' arrays after the operators quantised them, computed like the reference hooks.
at::Tensor mean_by_operators(const std::vector<at::Tensor>& arrays, std::optional<int64_t> channel_size) {
  const int64_t numel = arrays[0].numel();
  at::Tensor sum = at::zeros({numel}, arrays[0].options().dtype(at::kFloat));
  for (const at::Tensor& array : arrays) {
    if (!channel_size) {
      const auto [scale, zero_point] = choose_qparams_per_tensor(array);
      sum.add_(dequantize_per_tensor(quantize_per_tensor(array, scale, zero_point), scale, zero_point));
      continue;
    }
    const int64_t missing = (*channel_size - numel % *channel_size) % *channel_size;
    const at::Tensor channels = at::constant_pad_nd(array, {0, missing}).view({-1, *channel_size});
    const auto [scales, zero_points] = choose_qparams_per_channel(channels);
    const at::Tensor codes = quantize_per_channel(channels, scales, zero_points);
    sum.add_(dequantize_per_channel(codes, scales, zero_points).view({-1}).narrow(0, 0, numel));
  }
  return sum.div_(static_cast<int64_t>(arrays.size())).to(arrays[0].scalar_type());
}

class CudaAffineCodec : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { NARROWCAST_SKIP_WITHOUT(c10::DeviceType::CUDA); }
};

// The mean of messages that the codec wrote and read.
at::Tensor mean_by_codec(const std::vector<at::Tensor>& arrays, std::optional<int64_t> channel_size) {
  const auto codec = affine_codec(channel_size)(at::kCUDA);
  const ElementRange whole{0, arrays[0].numel()};
  const int64_t slot = slot_bytes(codec->message_bytes(whole));
  const auto ranks = static_cast<int64_t>(arrays.size());
  const at::Tensor memory = at::empty({ranks * slot}, at::device(at::kCUDA).dtype(at::kByte));
  std::vector<at::Tensor> messages;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    messages.push_back(memory.narrow(0, rank * slot, codec->message_bytes(whole)));
    codec->encode({arrays[static_cast<size_t>(rank)], {}, {}}, whole, messages.back());
  }
  at::Tensor mean = at::empty_like(arrays[0]);
  codec->average({mean, {}, {}}, whole, messages);
  return mean;
}

TEST_P(CudaAffineCodec, HasTheBitsOfTheOperators) {
  for (const int64_t numel : {1, 7, 127, 128, 129, 511, 513, 70'001, 1'000'003}) {
    std::vector<at::Tensor> inputs;
    for (const auto& [name, of_cpu] : test::inputs(GetParam(), numel)) inputs.push_back(of_cpu.cuda());
    for (const std::optional<int64_t> channel_size : {std::optional<int64_t>(), {1}, {512}, {1'025}, {9'000}}) {
      for (const size_t ranks : {1, 2, 3, 5, 8}) {
        SCOPED_TRACE(::testing::Message() << channel_size.value_or(0) << " of " << numel << ", " << ranks << " ranks");
        std::vector<at::Tensor> arrays;
        for (size_t rank = 0; rank < ranks; ++rank) arrays.push_back(inputs[rank % inputs.size()]);
        EXPECT_TRUE(
            same_bits(mean_by_codec(arrays, channel_size).cpu(), mean_by_operators(arrays, channel_size).cpu()));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaAffineCodec, ::testing::Values(at::kFloat, at::kDouble, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return at::toString(info.param); });

}  // namespace
}  // namespace narrowcast::collectives
