#include "hooks/quantize_per_channel.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "tests/hooks/run_hook.h"
#include "tests/hooks/upstream_quantization.h"

namespace narrowcast::hooks {
namespace {

TEST(QuantizePerChannelHook, TakesAScaleForEach512Elements) {
  at::Tensor bucket = at::cat({at::full({512}, 255.F), at::full({512}, 2.F), at::full({100}, -3.F)});
  EXPECT_TRUE(at::equal(run_hook("quantize_per_channel", {bucket})[0],
                        at::cat({at::full({512}, 255.F), at::full({512}, (2.F / 255) * 255),
                                 at::full({100}, (3.F / 255) * (0 - 255.F))})));
}

TEST(QuantizePerChannelHook, ALargeValueSpoilsOnlyItsOwnRow) {
  at::Tensor bucket = at::full({1024}, 0.1F);
  bucket[511] = 255;  // A scale of 1 in the first row.
  const at::Tensor result = run_hook("quantize_per_channel", {bucket})[0];
  EXPECT_TRUE(at::equal(result.narrow(0, 0, 511), at::zeros({511})));
  EXPECT_TRUE(at::equal(result.narrow(0, 512, 512), at::full({512}, (0.1F / 255) * 255)));
}

TEST(QuantizePerChannelHook, AChannelOfOneElementIsAsExactAsItsCodes) {
  const at::Tensor bucket = at::tensor({3.F, -1.F, 0.F, 1e-9F});
  // An element alone is an end of its range; the last one is below half the least scale.
  EXPECT_TRUE(at::equal(run_hook("quantize_per_channel", {bucket}, 1)[0],
                        at::tensor({(3.F / 255) * 255, (1.F / 255) * (0 - 255.F), 0.F, 0.F})));
}

TEST(QuantizePerChannelHook, ChannelsAreNotCutWhereMessagesAre) {
  at::manual_seed(3);
  // Pieces of 2^20 elements would cut the channel in the middle, which is in one piece with the next.
  for (const int64_t channel_size : {1000, 700'001, (1 << 20) + 1, 3 << 20}) {
    const int64_t numel = 2 * (1 << 20) + 600;
    const std::vector<at::Tensor> buckets{at::randn({numel}), at::randn({numel}).mul(3)};
    const std::vector<at::Tensor> means = run_hook("quantize_per_channel", buckets, channel_size);
    EXPECT_TRUE(at::equal(means[0], upstream::per_channel_mean(buckets, channel_size))) << channel_size;
    EXPECT_TRUE(at::equal(means[1], means[0])) << channel_size;
  }
}

TEST(QuantizePerChannelHook, ASizeBeyondAnyBucketIsOneChannel) {
  at::manual_seed(4);
  const std::vector<at::Tensor> buckets{at::randn({1000}), at::randn({1000})};
  EXPECT_TRUE(at::equal(run_hook("quantize_per_channel", buckets, std::numeric_limits<int64_t>::max())[0],
                        run_hook("quantize_per_tensor", buckets)[0]));
}

constexpr int64_t kMostRanks = 8;

// One bucket per rank, and PyTorch's mean of those of the first rank, of the first two and so on.
struct ChannelSizeStep {
  int64_t channel_size;
  std::vector<at::Tensor> buckets;
  std::vector<at::Tensor> means;
};

// Channels of all kinds, from one element to more than a bucket has, over buckets with and without a rest. PyTorch's
// way, channel by channel, takes longer than the hooks do, so that all numbers of ranks share it.
const std::vector<ChannelSizeStep>& channel_size_steps() {
  static const std::vector<ChannelSizeStep> all = [] {
    std::vector<ChannelSizeStep> steps;
    for (const int64_t channel_size : {1, 7, 128, 512, 513, 1000, 3000}) {
      for (const int64_t numel : {0, 1, 7, 127, 128, 129, 257, 511, 512, 513, 1000, 1001, 2500}) {
        for (const auto dtype : {at::kFloat, at::kBFloat16}) {
          at::manual_seed(numel);
          ChannelSizeStep step = {.channel_size = channel_size, .buckets = {}, .means = {}};
          for (int64_t rank = 0; rank < kMostRanks; ++rank) {
            step.buckets.push_back(at::randn({numel}).mul(rank + 1).to(dtype));
          }
          step.means = upstream::per_channel_means(step.buckets, channel_size);
          steps.push_back(std::move(step));
        }
      }
    }
    return steps;
  }();
  return all;
}

class ChannelSizeTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(ChannelSizeTest, GivesPyTorchsBitsOnAllRanks) {
  const int64_t world_size = GetParam();
  const std::vector<ChannelSizeStep>& steps = channel_size_steps();
  testing::run_ranks(world_size, [&](int64_t rank, const auto& group) {
    std::unique_ptr<CommHook> hook;
    for (size_t i = 0; i < steps.size(); ++i) {
      const ChannelSizeStep& step = steps[i];
      if (i == 0 || step.channel_size != steps[i - 1].channel_size) {
        hook = create_comm_hook("quantize_per_channel", {.process_group = group, .channel_size = step.channel_size});
      }
      auto bucket = make_bucket(step.buckets[rank].clone());
      const auto future = hook->runHook(bucket);
      future->waitAndThrow();
      EXPECT_TRUE(at::equal(hook->parseHookResult(future->value()), step.means[world_size - 1]))
          << step.buckets[rank].numel() << " of " << step.buckets[rank].scalar_type() << " by " << step.channel_size;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, ChannelSizeTest, ::testing::Values(1, 2, 3, 4, 5, kMostRanks));

}  // namespace
}  // namespace narrowcast::hooks
