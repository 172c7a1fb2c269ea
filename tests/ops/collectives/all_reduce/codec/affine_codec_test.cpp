// Messages of the reference hooks, in one chunk on a stream. This runs on the CPU, where the bits must equal those of
// PyTorch's hooks.
#include "ops/collectives/all_reduce/codec/affine_codec.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "ops/collectives/all_reduce/stream/stream_all_reduce.h"
#include "tests/support/in_turn.h"
#include "tests/support/ranks.h"
#include "tests/support/upstream_quantization.h"

namespace narrowcast::hooks {
namespace {

using testing::run_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

struct CodecCase {
  std::string name;
  std::optional<int64_t> channel_size;

  at::Tensor mean(const std::vector<at::Tensor>& buckets) const {
    return channel_size ? upstream::per_channel_mean(buckets, *channel_size) : upstream::per_tensor_mean(buckets);
  }
  int64_t bytes(int64_t numel) const {
    return numel + 8 * (channel_size ? (numel + *channel_size - 1) / *channel_size : 1);
  }
};

const CodecCase kCodecCases[] = {
    {"per_tensor", {}}, {"per_channel_1", 1}, {"per_channel_512", 512}, {"per_channel_1000", 1000}};

class AffineCodec : public ::testing::TestWithParam<std::tuple<CodecCase, int64_t, int64_t>> {};

TEST_P(AffineCodec, HasTheBitsOfPyTorch) {
  const auto& [value, world_size, numel] = GetParam();
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    at::manual_seed(numel);
    std::vector<at::Tensor> buckets;
    for (int64_t rank = 0; rank < world_size; ++rank) {
      buckets.push_back(at::randn({numel}).mul(rank + 1).to(dtype));
    }
    const at::Tensor expected = value.mean(buckets);
    run_ranks(
        world_size, [&, &value = value, &world_size = world_size, &numel = numel](int64_t rank, const Group& group) {
          const auto codec = collectives::affine_codec(value.channel_size);
          collectives::StreamAllReduce mean({group}, {.name = value.name, .numel = numel, .codec = codec}, at::kCPU);
          const at::Tensor bucket = buckets[rank].clone();
          mean.enqueue({bucket, {}, {}});
          EXPECT_TRUE(at::equal(bucket, expected)) << dtype;
          EXPECT_EQ(mean.payload_bytes(), value.bytes(numel) * (world_size - 1));
        });
  }
}

// Each codec with each size, in one of the worlds. PyTorch takes seconds for thousands of channels of one element.
std::vector<std::tuple<CodecCase, int64_t, int64_t>> codecs_worlds_and_sizes() {
  std::vector<std::tuple<CodecCase, int64_t>> codecs_and_sizes;
  for (const CodecCase& codec : kCodecCases) {
    for (const int64_t numel : {1, 7, 511, 512, 513, 1024, 5003}) {
      if (codec.channel_size != 1 || numel <= 513) codecs_and_sizes.emplace_back(codec, numel);
    }
  }
  std::vector<std::tuple<CodecCase, int64_t, int64_t>> all;
  for (const auto& [codec_and_size, world_size] : test::in_turn(codecs_and_sizes, std::vector<int64_t>{3, 2, 4, 1})) {
    all.emplace_back(std::get<0>(codec_and_size), world_size, std::get<1>(codec_and_size));
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Hooks, AffineCodec, ::testing::ValuesIn(codecs_worlds_and_sizes()), [](const auto& info) {
  return std::get<0>(info.param).name + "_" + std::to_string(std::get<1>(info.param)) + "_" +
         std::to_string(std::get<2>(info.param));
});

TEST(AffineCodecOfNothing, AnEmptyBucketSendsNothing) {
  run_ranks(2, [](int64_t, const Group& group) {
    for (const CodecCase& value : kCodecCases) {
      const auto codec = collectives::affine_codec(value.channel_size);
      collectives::StreamAllReduce mean({group}, {.name = "h", .codec = codec}, at::kCPU);
      mean.enqueue({at::empty({0}), {}, {}});
      EXPECT_EQ(mean.payload_bytes(), 0) << value.name;
    }
  });
}

}  // namespace
}  // namespace narrowcast::hooks
