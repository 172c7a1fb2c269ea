// The stream's way of the reference hooks, on the CPU: there it must have the bits that PyTorch's hooks have there.
#include "hooks/gathered_mean.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>

#include "hooks/tensor_codecs.h"
#include "tests/hooks/upstream_quantization.h"
#include "tests/support/ranks.h"

namespace narrowcast::hooks {
namespace {

using testing::run_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Upstream = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

struct Case {
  std::string name;
  TensorCodec codec;
  Upstream upstream;
  std::function<int64_t(int64_t numel)> bytes;
};

Case per_channel_codec_case(int64_t size) {
  return {"per_channel_" + std::to_string(size), per_channel_codec(size),
          [=](const std::vector<at::Tensor>& buckets) { return upstream::per_channel_mean(buckets, size); },
          [=](int64_t numel) { return numel + 8 * ((numel + size - 1) / size); }};
}

const Case kCases[] = {
    {"per_tensor", per_tensor_codec(), upstream::per_tensor_mean, [](int64_t numel) { return numel + 8; }},
    per_channel_codec_case(1),
    per_channel_codec_case(512),
    per_channel_codec_case(1000),
};

class StreamGatheredMean : public ::testing::TestWithParam<std::tuple<Case, int64_t, int64_t>> {};

TEST_P(StreamGatheredMean, HasTheBitsOfPyTorch) {
  const auto& [value, world_size, numel] = GetParam();
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    at::manual_seed(numel);
    std::vector<at::Tensor> buckets;
    for (int64_t rank = 0; rank < world_size; ++rank) {
      buckets.push_back(at::randn({numel}).mul(rank + 1).to(dtype));
    }
    const at::Tensor expected = value.upstream(buckets);
    run_ranks(world_size,
              [&, &value = value, &world_size = world_size, &numel = numel](int64_t rank, const Group& group) {
                const at::Tensor bucket = buckets[rank].clone();
                const int64_t sent = enqueue_gathered_mean(group, value.name, value.codec, bucket);
                EXPECT_TRUE(at::equal(bucket, expected)) << dtype;
                EXPECT_EQ(sent, value.bytes(numel) * (world_size - 1));
              });
  }
}

INSTANTIATE_TEST_SUITE_P(Hooks, StreamGatheredMean,
                         ::testing::Combine(::testing::ValuesIn(kCases), ::testing::Values(1, 2, 3, 4),
                                            ::testing::Values(1, 7, 511, 512, 513, 1024, 5003)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" + std::to_string(std::get<1>(info.param)) + "_" +
                                  std::to_string(std::get<2>(info.param));
                         });

TEST(StreamGatheredMeanOfNothing, AnEmptyBucketSendsNothing) {
  run_ranks(2, [](int64_t, const Group& group) {
    EXPECT_EQ(enqueue_gathered_mean(group, "h", per_tensor_codec(), at::empty({0})), 0);
  });
}

}  // namespace
}  // namespace narrowcast::hooks
