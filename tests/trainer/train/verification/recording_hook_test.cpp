#include "trainer/train/verification/hook_run.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "tests/support/ranks.h"

namespace narrowcast::verification {
namespace {

// Zeroes the bucket at once.
class ZeroHook : public hooks::CommHook {
 public:
  std::string_view name() const override { return "zero"; }
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    count_payload(7);
    bucket.getBufferRef().zero_();
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
    future->markCompleted(c10::IValue(bucket.getBufferRef()));
    return future;
  }
};

TEST(RecordingHook, KeepsWhatTheInnerHookWasGiven) {
  const at::Tensor buffer = at::arange(10, at::kFloat);
  const std::vector<at::Tensor> parameters = {at::zeros({2, 3}), at::zeros({4})};
  c10d::GradBucket bucket(/*index=*/1, /*bucket_count=*/2, buffer, /*offsets=*/{0, 6}, /*lengths=*/{6, 4},
                          {c10::IntArrayRef(parameters[0].sizes()), c10::IntArrayRef(parameters[1].sizes())},
                          parameters, std::nullopt);
  RecordingHook hook(std::make_unique<ZeroHook>());
  EXPECT_EQ(hook.name(), "zero");
  const auto future = hook.runHook(bucket);
  EXPECT_TRUE(at::equal(hook.parseHookResult(future->value()), at::zeros({10})));
  const std::vector<RecordedBucket> buckets = hook.take_buckets();
  ASSERT_EQ(buckets.size(), 1U);
  EXPECT_TRUE(at::equal(buckets[0].gradients, at::arange(10, at::kFloat)));
  EXPECT_EQ(buckets[0].offsets, (std::vector<int64_t>{0, 6}));
  EXPECT_EQ(buckets[0].parameters.size(), 2U);
  EXPECT_TRUE(buckets[0].is_last);
  EXPECT_EQ(hook.inner().payload_bytes_sent(), 7);
  EXPECT_TRUE(hook.take_buckets().empty());
}

TEST(CheckIsLast, PassesOnSeveralBuckets) {
  for (const int64_t world_size : {1, 2}) {
    testing::run_ranks(world_size, [](int64_t, const ProcessGroupPtr& group) {
      const IsLastResult result = check_is_last(group);
      EXPECT_TRUE(result.passed);
      // Ten layers that fill a bucket each, and a small one.
      EXPECT_GE(result.buckets, 10);
    });
  }
}

}  // namespace
}  // namespace narrowcast::verification
