#include "hooks/row/execution.h"

#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>

#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/support/simulated_streams.h"

namespace narrowcast::hooks {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

TEST(CpuEngine, IsTheGroupsOwn) {
  testing::run_ranks(1, [](int64_t, const Group& group) {
    CpuEngine first({group});
    CpuEngine second({group});
    EXPECT_EQ(&first.get(), &second.get());
    EXPECT_EQ(&first.get(), engine::Engine::for_group(group).get());
  });
}

TEST(CpuEngine, NeedsAGroupThatMovesTensors) {
  EXPECT_THAT(testing::error_message<c10::ValueError>(
                  [] { CpuEngine engine({c10::make_intrusive<c10d::ProcessGroup>(0, 1)}); }),
              ::testing::HasSubstr("backend for CPU tensors"));
}

TEST(HookStream, DoesItsWorkAtOnceOnTheCpu) {
  HookStream stream;
  const at::Tensor bucket = at::ones({3});
  const auto future = stream.run(bucket, [&] { return bucket.mul_(2); });
  ASSERT_TRUE(future->completed());
  EXPECT_TRUE(future->value().toTensor().is_same(bucket));
  EXPECT_TRUE(bucket.eq(2).all().item<bool>());
  EXPECT_THROW(stream.run(bucket, []() -> at::Tensor { throw std::logic_error("on purpose"); }), std::logic_error);
}

using testing::SimulatedStreams;

// Records work in place of a bucket's exchange.
std::function<at::Tensor()> noting(const std::string& work, const at::Tensor& bucket) {
  return [work, bucket] {
    SimulatedStreams::enqueue(work);
    return bucket;
  };
}

TEST(HookStream, RunsBetweenTheGradientsAndTheOptimizerButBesideTheBackwardPass) {
  SimulatedStreams::reset();
  HookStream stream;
  const at::Tensor bucket = SimulatedStreams::tensor();
  SimulatedStreams::enqueue("gradients");
  const auto future = stream.run(bucket, noting("exchange", bucket));
  SimulatedStreams::enqueue("backward");
  future->wait();
  SimulatedStreams::enqueue("optimizer");
  EXPECT_TRUE(SimulatedStreams::precedes("gradients", "exchange"));
  EXPECT_FALSE(SimulatedStreams::precedes("exchange", "backward"));
  EXPECT_TRUE(SimulatedStreams::precedes("exchange", "optimizer"));
  EXPECT_TRUE(SimulatedStreams::has_high_priority("exchange"));
}

TEST(HookStreams, TakeTurnsAndDoNotWaitForEachOther) {
  SimulatedStreams::reset();
  HookStreams streams;
  const at::Tensor bucket = SimulatedStreams::tensor();
  for (const size_t index : {0, 1, 2}) {
    streams.run(HookStreams::place_of(index), bucket, noting("bucket " + std::to_string(index), bucket));
  }
  EXPECT_FALSE(SimulatedStreams::precedes("bucket 0", "bucket 1"));
  EXPECT_FALSE(SimulatedStreams::precedes("bucket 1", "bucket 2"));
  EXPECT_TRUE(SimulatedStreams::precedes("bucket 0", "bucket 2")) << "which share their memory";
}

TEST(HookStreams, RunABucketAlone) {
  SimulatedStreams::reset();
  HookStreams streams;
  const at::Tensor bucket = SimulatedStreams::tensor();
  streams.run(0, bucket, noting("before", bucket));
  streams.run_alone(1, bucket, noting("alone", bucket));
  streams.run(0, bucket, noting("after", bucket));
  EXPECT_TRUE(SimulatedStreams::precedes("before", "alone"));
  EXPECT_TRUE(SimulatedStreams::precedes("alone", "after"));
}

// The other stream has had no work yet.
TEST(HookStreams, RunTheFirstBucketAlone) {
  SimulatedStreams::reset();
  HookStreams streams;
  const at::Tensor bucket = SimulatedStreams::tensor();
  streams.run_alone(0, bucket, noting("alone", bucket));
  streams.run(1, bucket, noting("after", bucket));
  EXPECT_TRUE(SimulatedStreams::precedes("alone", "after"));
}

}  // namespace
}  // namespace narrowcast::hooks
