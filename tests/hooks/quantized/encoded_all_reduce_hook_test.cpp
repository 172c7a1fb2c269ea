// Properties of the reference hooks with 8-bit codes.
#include "hooks/quantized/encoded_all_reduce_hook.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "tests/hooks/all/bucket.h"
#include "tests/hooks/all/run_hook.h"
#include "tests/support/error_message.h"
#include "tests/support/upstream_quantization.h"

namespace narrowcast::hooks {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

class ReferenceHook : public ::testing::TestWithParam<std::string> {
 protected:
  static at::Tensor expected(const std::vector<at::Tensor>& buckets) {
    return GetParam() == "quantize_per_tensor" ? upstream::per_tensor_mean(buckets)
                                               : upstream::per_channel_mean(buckets);
  }
  static at::Tensor mean_of(const std::vector<at::Tensor>& buckets) { return run_hook(GetParam(), buckets)[0]; }
};

TEST_P(ReferenceHook, CutsLargeBucketsIntoChunks) {
  at::manual_seed(1);
  const int64_t numel = 2 * (1 << 20) + 600;  // Two chunks; the last one ends with a short row.
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const std::vector<at::Tensor> buckets{at::randn({numel}).to(dtype), at::randn({numel}).mul(3).to(dtype)};
    EXPECT_TRUE(at::equal(mean_of(buckets), expected(buckets)));
  }
}

TEST_P(ReferenceHook, ReproducesTheReferenceCase) {
  // The case of PyTorch's own test: gradient x^(1 + rank) / 800 of a 40 x 20 parameter.
  at::manual_seed(2020);
  const at::Tensor x = at::randn({800});
  EXPECT_TRUE(at::equal(mean_of({x * 0.00125F, x * x * 0.00125F}), expected({x * 0.00125F, x * x * 0.00125F})));
}

TEST_P(ReferenceHook, KeepsTheFloorOfTheScale) {
  // Values below 2^-24 round to code 0 in the reference, and must do so here.
  const at::Tensor tiny = at::full({700}, 5.9e-8F);
  EXPECT_TRUE(at::equal(mean_of({tiny, tiny}), at::zeros({700})));
  EXPECT_TRUE(at::equal(expected({tiny, tiny}), at::zeros({700})));
}

TEST_P(ReferenceHook, PassesOnWhatIsNotFinite) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    at::Tensor broken = at::ones({2000});
    broken[600] = bad;  // In the second of four rows.
    const at::Tensor mean = mean_of({at::ones({2000}), broken});
    const bool per_tensor = GetParam() == "quantize_per_tensor";
    EXPECT_TRUE(mean.narrow(0, 512, 512).isnan().all().item<bool>()) << bad;
    EXPECT_EQ(mean.narrow(0, 0, 512).isnan().any().item<bool>(), per_tensor) << bad;
    EXPECT_EQ(mean.narrow(0, 1024, 976).isnan().any().item<bool>(), per_tensor) << bad;
  }
}

TEST_P(ReferenceHook, RefusesWhatItCannotSend) {
  run_ranks(1, [](int64_t, const Group& group) {
    const auto hook = create_comm_hook(GetParam(), {group});
    const auto message = [&](const at::Tensor& buffer) {
      auto bucket = make_bucket(buffer, 3, 4);
      return testing::error_message<c10::Error>([&] { hook->runHook(bucket); });
    };
    const auto named = [](const char* what) { return AllOf(HasSubstr(GetParam() + ": bucket 3"), HasSubstr(what)); };
    EXPECT_THAT(message(at::empty({4}, at::kMeta)), named("is on meta"));
    EXPECT_THAT(message(at::empty({4}, at::kInt)), named("is Int"));
    EXPECT_THAT(message(at::empty({4, 4}).t()), named("contiguous"));
    EXPECT_THAT(message(at::eye(4).to_sparse()), named("holds sparse gradients"));
    EXPECT_EQ(hook->payload_bytes_sent(), 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Hooks, ReferenceHook, ::testing::Values("quantize_per_tensor", "quantize_per_channel"));

// A single rank gets its own bucket, encoded and decoded. Scale, zero point and codes are PyTorch's.
TEST(QuantizePerTensorHook, DecodesPyTorchsCodes) {
  const float scale = 0x1.010102p-7F;
  const at::Tensor expected = at::tensor({0.F, 127.F, 254.F, 191.F, 63.F}).sub(127.F).mul(scale);
  EXPECT_TRUE(at::equal(run_hook("quantize_per_tensor", {at::tensor({-1.F, 0.F, 1.F, .5F, -.5F})})[0], expected));
}

TEST(QuantizePerTensorHook, TakesOneScaleForTheWholeBucket) {
  at::Tensor bucket = at::full({2000}, 0.1F);
  bucket[1999] = 255;  // Makes the scale 1: all other values become 0.
  at::Tensor expected = at::zeros({2000});
  expected[1999] = 255;
  EXPECT_TRUE(at::equal(run_hook("quantize_per_tensor", {bucket})[0], expected));
}

TEST(QuantizePerTensorHook, EveryRankContributesThroughItsOwnScale) {
  // Both ends of a range are exact: code 255 times scale, and the code of zero.
  const auto results = run_hook("quantize_per_tensor", {at::tensor({255.F, 0.F}), at::tensor({0.F, -510.F})});
  for (const at::Tensor& result : results) EXPECT_TRUE(at::equal(result, at::tensor({127.5F, -255.F})));
}

TEST(QuantizePerChannelHook, TakesAScaleForEach512Elements) {
  at::Tensor bucket = at::cat({at::full({512}, 255.F), at::full({512}, 2.F), at::full({100}, -3.F)});
  EXPECT_TRUE(at::equal(run_hook("quantize_per_channel", {bucket})[0],
                        at::cat({at::full({512}, 255.F), at::full({512}, (2.F / 255) * 255),
                                 at::full({100}, (3.F / 255) * (0 - 255.F))})));
}

TEST(QuantizePerChannelHook, ALargeValueSpoilsOnlyItsOwnRow) {
  at::Tensor bucket = at::full({1024}, 0.1F);
  bucket[511] = 255;  // Makes the scale of the first row 1.
  const at::Tensor result = run_hook("quantize_per_channel", {bucket})[0];
  EXPECT_TRUE(at::equal(result.narrow(0, 0, 511), at::zeros({511})));
  EXPECT_TRUE(at::equal(result.narrow(0, 512, 512), at::full({512}, (0.1F / 255) * 255)));
}

TEST(QuantizePerChannelHook, AChannelOfOneElementIsAsExactAsItsCodes) {
  const at::Tensor bucket = at::tensor({3.F, -1.F, 0.F, 1e-9F});
  // A single element is an end of its range; the last one is below half the least scale.
  EXPECT_TRUE(at::equal(run_hook("quantize_per_channel", {bucket}, 1)[0],
                        at::tensor({(3.F / 255) * 255, (1.F / 255) * (0 - 255.F), 0.F, 0.F})));
}

TEST(QuantizePerChannelHook, ChannelsAreNotCutWhereMessagesAre) {
  at::manual_seed(3);
  // Chunks of about 2^20 elements would cut the channel in the middle, so it is in one chunk with the next channel.
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

// One bucket per rank, and PyTorch's means of the buckets of the first rank, of the first two, and so on.
struct ChannelSizeStep {
  int64_t channel_size;
  std::vector<at::Tensor> buckets;
  std::vector<at::Tensor> means;
};

// Channel sizes from one element to more than a bucket, with and without a remainder. PyTorch's reference is slower
// than the hooks, so all world sizes share its results.
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
