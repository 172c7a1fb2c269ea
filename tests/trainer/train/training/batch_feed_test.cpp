#include "trainer/train/training/batch_feed.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "tests/trainer/train/training/small_text.h"
#include "trainer/train/training/device.h"

namespace narrowcast::training {
namespace {

using testing::small_text;

class BatchFeedTest : public ::testing::TestWithParam<at::DeviceType> {
 protected:
  void SetUp() override {
    if (GetParam() == at::kCUDA && gpu_count() == 0) {
      GTEST_SKIP() << "no GPU";
    }
  }

  const at::Device device{GetParam(), static_cast<c10::DeviceIndex>(GetParam() == at::kCUDA ? 0 : -1)};
  const data::TextDataset dataset = small_text();
};

TEST_P(BatchFeedTest, GivesTheBatchesThatWerePrepared) {
  BatchFeed feed(dataset, device);
  feed.prepare({1, 2});
  for (int64_t first = 1; first < 20; ++first) {
    const models::Batch batch = feed.take();
    feed.prepare({first + 1, first + 2});  // While the one before is still in use.
    const models::Batch expected = dataset.training_batch({first, first + 1});
    EXPECT_EQ(batch.inputs.device(), device);
    EXPECT_TRUE(at::equal(batch.inputs.cpu(), expected.inputs)) << first;
    EXPECT_TRUE(at::equal(batch.targets.cpu(), expected.targets)) << first;
  }
}

TEST_P(BatchFeedTest, HasNothingThatWasNotPrepared) {
  BatchFeed feed(dataset, device);
  EXPECT_THROW(feed.take(), c10::Error);
  feed.prepare({0});
  feed.take();
  EXPECT_THROW(feed.take(), c10::Error);
}

TEST_P(BatchFeedTest, BringsAnyBatchToADevice) {
  const models::Batch batch = dataset.held_out_batch({0, 1});
  const models::Batch there = on_device(batch, device);
  EXPECT_EQ(there.targets.device(), device);
  EXPECT_TRUE(at::equal(there.inputs.cpu(), batch.inputs));
}

INSTANTIATE_TEST_SUITE_P(Devices, BatchFeedTest, ::testing::Values(at::kCPU, at::kCUDA),
                         [](const auto& info) { return info.param == at::kCPU ? "cpu" : "cuda"; });

}  // namespace
}  // namespace narrowcast::training
