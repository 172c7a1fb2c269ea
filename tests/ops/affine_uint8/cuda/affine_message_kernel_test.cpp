// The kernels' source, run on the CPU. It is compared with ATen's operators in the order and with the rounding of
// PyTorch's CUDA kernels, and with the CPU kernel where both divide in the same way.
#include "ops/cuda/affine_uint8/affine_message.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/cpu/affine_uint8/affine_uint8_kernels.h"
#include "ops/cuda/launch/tensor_arguments.h"
#include "tests/ops/affine_uint8/cuda/affine_model.h"
#include "tests/ops/affine_uint8/reference.h"
#include "tests/support/cuda_on_host/cuda_on_host.h"

// Must follow cuda_on_host.h, because it is CUDA C++.
#include "ops/cuda/affine_uint8/affine_message_kernel.cuh"

namespace narrowcast::cuda {
namespace {

using cuda_on_host::run_kernel;
using cuda_on_host::Turns;
using narrowcast::test::same_bits;

const std::vector<at::ScalarType> kDtypes{at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};
constexpr int64_t kSizes[] = {0, 1, 7, 127, 128, 129, 255, 256, 257, 1'023, 9'001, 20'011};
// Sizes of a channel: for one warp, for one block, in parts; 0 for all elements in one channel.
constexpr int64_t kChannelSizes[] = {1, 7, 128, 512, 1'000, 1'025, 8'192, 8'193, 0};

AffineChannels channels_of(int64_t numel, int64_t channel_size) {
  const int64_t whole = std::max<int64_t>(1, numel);
  return {numel, channel_size == 0 ? whole : std::min(channel_size, whole)};
}

// The same as launch_affine_encode.
template <class T>
void encode_on_host(const AffineEncodeArguments& arguments, Turns turns) {
  const AffineChannels& channels = arguments.channels;
  const auto launch = [&](const RowParts& parts, int64_t teams_of_block, const auto& kernel) {
    const int64_t blocks = (parts.count() + teams_of_block - 1) / teams_of_block;
    if (blocks == 0) return;
    run_kernel({.blocks = blocks, .threads = kAffineThreads, .turns = turns}, [&] { kernel(arguments, parts); });
  };
  if (channels.size <= kMostOfAffineWarp) {
    launch(share_elements(channels.numel, channels.size, kMostOfAffineBlock), AffineTeam<32>::kPerBlock,
           affine_encode_channels_kernel<32, T>);
  } else if (channels.size <= kMostOfAffineBlock) {
    launch(share_elements(channels.numel, channels.size, kMostOfAffineBlock), 1,
           affine_encode_channels_kernel<kAffineThreads, T>);
  } else {
    launch(parts_of_long_channels(channels), 1, affine_range_kernel<T>);
    launch(parts_of_long_channels(channels), 1, affine_encode_parts_kernel<T>);
  }
}

// The message of x [numel], between bytes that must not change.
at::Tensor message_on_host(const at::Tensor& x, const AffineChannels& channels, Turns turns) {
  constexpr int64_t kMargin = 64;
  const int64_t bytes = channels.header_bytes() + channels.numel;
  const at::Tensor memory = at::full({bytes + 2 * kMargin}, 99, at::kByte);
  const at::Tensor message = memory.narrow(0, kMargin, bytes);
  const at::Tensor ranges = at::full({parts_of_long_channels(channels).count(), 2}, -1, at::kInt);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "encode", [&] {
    encode_on_host<scalar_t>({.type = float_type_of(x.scalar_type()),
                              .x = x.const_data_ptr(),
                              .channels = channels,
                              .ranges = ranges.mutable_data_ptr(),
                              .message = message.mutable_data_ptr<uint8_t>()},
                             turns);
  });
  EXPECT_TRUE(memory.narrow(0, 0, kMargin).eq(99).all().item<bool>());
  EXPECT_TRUE(memory.narrow(0, kMargin + bytes, kMargin).eq(99).all().item<bool>());
  return message;
}

codec::AffineQparams qparams_in(const at::Tensor& message, int64_t channel) {
  codec::AffineQparams qparams;
  std::memcpy(&qparams, message.const_data_ptr<uint8_t>() + channel * 8, sizeof(qparams));
  return qparams;
}

// Fails if a channel's qparams or codes differ from the model's.
void expect_message_of(const at::Tensor& x, const AffineChannels& channels, const at::Tensor& message) {
  const at::Tensor codes = message.narrow(0, channels.header_bytes(), channels.numel);
  for (int64_t channel = 0; channel < channels.count(); ++channel) {
    const int64_t first = channel * channels.size;
    const int64_t numel = std::min(channels.size, channels.numel - first);
    const at::Tensor elements = x.narrow(0, first, numel);
    const auto [scale, zero_point] = narrowcast::test::qparams_model(elements);
    const codec::AffineQparams sent = qparams_in(message, channel);
    ASSERT_TRUE(same_bits(at::full({}, sent.scale), scale)) << "channel " << channel;
    ASSERT_EQ(sent.zero_point, zero_point.item<int32_t>()) << "channel " << channel;
    ASSERT_TRUE(
        same_bits(codes.narrow(0, first, numel), narrowcast::test::quantized_model(elements, scale, zero_point)))
        << "channel " << channel;
  }
}

TEST(AffineEncodeKernel, EqualsTheModelOfPyTorchOnCuda) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t numel : kSizes) {
      for (const int64_t channel_size : kChannelSizes) {
        const bool is_long = numel > 300;  // Simulated threads are slow.
        if (numel > 130 && channel_size != 0 && channel_size < (is_long ? 500 : 100)) continue;
        for (const auto& [name, x] : narrowcast::test::inputs(dtype, numel)) {
          if (is_long && name != "hostile" && name != "nan") continue;
          SCOPED_TRACE(::testing::Message() << dtype << " " << name << " " << numel << " in " << channel_size);
          const AffineChannels channels = channels_of(numel, channel_size);
          expect_message_of(x, channels, message_on_host(x, channels, Turns::kForward));
        }
      }
    }
  }
}

TEST(AffineEncodeKernel, WaitsForAllThreadsInAnyOrder) {
  at::manual_seed(1);
  const at::Tensor x = at::randn({9'001});
  for (const int64_t channel_size : {128, 1'025, 8'193, 0}) {
    const AffineChannels channels = channels_of(x.numel(), channel_size);
    EXPECT_TRUE(
        at::equal(message_on_host(x, channels, Turns::kForward), message_on_host(x, channels, Turns::kBackward)))
        << channel_size;
  }
}

TEST(AffineEncodeKernel, TakesArraysAtAnyAlignment) {
  at::manual_seed(2);
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor memory = at::randn({3'008}).to(dtype);
    for (int64_t offset = 0; offset < 8; ++offset) {
      for (const int64_t channel_size : {37, 512, 0}) {
        const at::Tensor x = memory.narrow(0, offset, 3'000);
        const AffineChannels channels = channels_of(3'000, channel_size);
        expect_message_of(x, channels, message_on_host(x, channels, Turns::kForward));
      }
    }
  }
}

TEST(AffineEncodeKernel, CutsALongChannelIntoFewParts) {
  for (const int64_t numel : {8'193L, 1'000'003L, 1L << 33}) {
    const RowParts parts = parts_of_long_channels({numel, numel});
    EXPECT_LE(parts.count(), 512);
    EXPECT_EQ(parts.at(parts.count() - 1).first + parts.at(parts.count() - 1).size, numel);
  }
}

TEST(AffineEncodeKernel, EncodesAMillionElements) {
  at::manual_seed(3);
  const at::Tensor x = at::randn({1'000'003});
  for (const int64_t channel_size : {int64_t{300'000}, int64_t{0}}) {
    const AffineChannels channels = channels_of(x.numel(), channel_size);
    expect_message_of(x, channels, message_on_host(x, channels, Turns::kForward));
  }
}

// The same as launch_affine_average: the mean of messages that are `stride` bytes apart, in an array that begins
// `offset` elements after an aligned address.
at::Tensor average_on_host(const at::Tensor& messages, const AffineChannels& channels, at::ScalarType dtype,
                           int64_t offset = 0) {
  const at::Tensor memory = at::full({channels.numel + 32}, 3, dtype);
  const at::Tensor mean = memory.narrow(0, 8 + offset, channels.numel);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, dtype, "average", [&] {
    using Average = AverageAffineMessages<scalar_t>;
    const Average average{{.messages = messages.const_data_ptr<uint8_t>(),
                           .stride = messages.stride(0),
                           .ranks = messages.size(0),
                           .type = float_type_of(dtype),
                           .mean = mean.mutable_data_ptr(),
                           .channels = channels}};
    const RowParts parts = share_elements(channels.numel, channels.size, Average::kPart);
    const int team = channels.size <= Average::kPart / 4 ? 32 : 256;
    for (int64_t index = 0; index < parts.count(); ++index) {
      for (int rank = team - 1; rank >= 0; --rank) average(parts.at(index), Lane{rank, team});
    }
  });
  EXPECT_TRUE(memory.narrow(0, 0, 8 + offset).eq(3).all().item<bool>());
  EXPECT_TRUE(memory.slice(0, 8 + offset + channels.numel).eq(3).all().item<bool>());
  return mean;
}

// The result of PyTorch's hooks for these messages on CUDA.
at::Tensor mean_model(const at::Tensor& messages, const AffineChannels& channels, at::ScalarType dtype) {
  at::Tensor sum = at::zeros({channels.numel});
  for (const at::Tensor& message : messages.unbind()) {
    const at::Tensor codes = message.narrow(0, channels.header_bytes(), channels.numel).to(at::kFloat);
    const at::Tensor scales = at::empty({channels.count()});
    const at::Tensor zero_points = at::empty({channels.count()});
    for (int64_t channel = 0; channel < channels.count(); ++channel) {
      const codec::AffineQparams qparams = qparams_in(message, channel);
      scales.mutable_data_ptr<float>()[channel] = qparams.scale;
      zero_points.mutable_data_ptr<float>()[channel] = static_cast<float>(qparams.zero_point);
    }
    const auto of_elements = [&](const at::Tensor& of_channels) {
      return of_channels.repeat_interleave(channels.size).narrow(0, 0, channels.numel);
    };
    sum = sum + of_elements(scales) * (codes - of_elements(zero_points));
  }
  return (sum * (1.0F / static_cast<float>(messages.size(0)))).to(dtype);
}

// The mean of the CPU kernel, in float32.
at::Tensor mean_by_cpu(const at::Tensor& messages, const AffineChannels& channels) {
  const at::Tensor mean = at::empty({channels.numel});
  for (int64_t channel = 0; channel < channels.count(); ++channel) {
    const int64_t first = channel * channels.size;
    std::vector<const uint8_t*> codes;
    std::vector<codec::AffineQparams> qparams;
    for (const at::Tensor& message : messages.unbind()) {
      codes.push_back(message.const_data_ptr<uint8_t>() + channels.header_bytes() + first);
      qparams.push_back(qparams_in(message, channel));
    }
    cpu::dequantize_mean(codes.data(), qparams.data(), messages.size(0),
                         std::min(channels.size, channels.numel - first), mean.mutable_data_ptr<float>() + first);
  }
  return mean;
}

// Messages of `ranks` ranks: random bytes, with mostly usual scales. Some scales are Inf, NaN, 0 or huge, as a faulty
// peer may send them.
at::Tensor random_messages(const AffineChannels& channels, int64_t ranks, int64_t stride) {
  at::manual_seed(channels.numel + 31 * ranks);
  const at::Tensor memory = at::randint(0, 256, {ranks, stride}, at::kByte);
  constexpr float kScales[] = {0x1p-23F, 0.3F,  1e-30F,  3e38F, 0.0F, std::numeric_limits<float>::infinity(),
                               0.017F,   -0.5F, 117.25F, 1e-3F, 2.0F, std::numeric_limits<float>::quiet_NaN()};
  int64_t next = ranks;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    for (int64_t channel = 0; channel < channels.count(); ++channel) {
      const bool hostile = channel % 5 == 1;
      const float scale = hostile ? kScales[next++ % 12] : 0.01F * static_cast<float>(rank + channel % 7 + 1);
      const codec::AffineQparams qparams{scale, static_cast<int32_t>((channel * 37 + rank * 101) % 256)};
      std::memcpy(memory.mutable_data_ptr<uint8_t>() + rank * stride + channel * 8, &qparams, sizeof(qparams));
    }
  }
  return memory.narrow(1, 0, channels.header_bytes() + channels.numel);
}

int64_t padded(int64_t bytes) { return (bytes + 127) / 128 * 128; }

TEST(AffineAverageKernel, EqualsTheModelOfPyTorchOnCudaAndTheCpu) {
  for (const int64_t numel : {0L, 1L, 7L, 127L, 128L, 129L, 255L, 256L, 257L, 20'011L, 1'000'003L}) {
    for (const int64_t channel_size : kChannelSizes) {
      if (numel > 1'000'000 && channel_size != 512 && channel_size != 0) continue;
      const AffineChannels channels = channels_of(numel, channel_size);
      for (const int64_t ranks : {1, 2, 3, 4, 5, 8}) {
        if (numel > 1'000'000 && ranks != 3 && ranks != 8) continue;
        const at::Tensor messages =
            random_messages(channels, ranks, padded(channels.header_bytes() + channels.numel) + 128);
        for (const at::ScalarType dtype : kDtypes) {
          SCOPED_TRACE(::testing::Message() << numel << " in " << channel_size << " of " << ranks << " as " << dtype);
          const at::Tensor mean = average_on_host(messages, channels, dtype);
          ASSERT_TRUE(same_bits(mean, mean_model(messages, channels, dtype)));
          if (dtype == at::kFloat && (ranks & (ranks - 1)) == 0) {
            ASSERT_TRUE(same_bits(mean, mean_by_cpu(messages, channels)));
          }
        }
      }
    }
  }
}

TEST(AffineAverageKernel, WritesToAnyAlignment) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t channel_size : {37, 512, 0}) {
      const AffineChannels channels = channels_of(3'000, channel_size);
      const at::Tensor messages = random_messages(channels, 3, padded(channels.header_bytes() + channels.numel));
      const at::Tensor expected = mean_model(messages, channels, dtype);
      for (int64_t offset = 0; offset < 8; ++offset) {
        ASSERT_TRUE(same_bits(average_on_host(messages, channels, dtype, offset), expected)) << dtype << offset;
      }
    }
  }
}

// Like PyTorch.
TEST(AffineAverageKernel, MultipliesByTheReciprocal) {
  const AffineChannels channels{1, 1};
  const at::Tensor messages = at::zeros({5, 128}, at::kByte);
  const codec::AffineQparams qparams{1.0F, 0};
  for (int64_t rank = 0; rank < 5; ++rank) {
    std::memcpy(messages.mutable_data_ptr<uint8_t>() + rank * 128, &qparams, sizeof(qparams));
    messages.mutable_data_ptr<uint8_t>()[rank * 128 + 8] = rank == 2 ? 9 : 0;
  }
  const float sum = 9;
  ASSERT_NE(sum * (1.0F / 5.0F), sum / 5.0F);
  EXPECT_EQ(average_on_host(messages, channels, at::kFloat).item<float>(), sum * (1.0F / 5.0F));
}

}  // namespace
}  // namespace narrowcast::cuda
