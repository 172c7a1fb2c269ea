#include "hooks/row/execution.h"

#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <stdexcept>
#include <string>

#include "hooks/table/hook_table.h"
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

// A hook of which only the identity counts.
struct Unused final : TableHook {
  Unused() : TableHook(hook_row("noop")) {}
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& /*bucket*/) override { return nullptr; }
};

// Two hooks whose all-reduces take two streams each in turn.
class HookTurnsTest : public ::testing::Test {
 protected:
  HookTurnsTest() { SimulatedStreams::reset(); }

  HookTurns::Future run(size_t hook, const std::string& work) {
    const at::Tensor bucket = SimulatedStreams::tensor();
    return turns_.run(hooks_.at(hook), bucket, [&] {
      return streams_.at(hook).run(HookStreams::place_of(buckets_++), bucket, noting(work, bucket));
    });
  }

  const std::array<Unused, 2> hooks_;

 private:
  HookTurns turns_;
  std::array<HookStreams, 2> streams_;
  size_t buckets_ = 0;
};

TEST_F(HookTurnsTest, LetABucketWaitForThoseOfAnotherHook) {
  run(0, "first");
  run(0, "second");
  SimulatedStreams::enqueue("gradients");
  const auto future = run(1, "other");
  SimulatedStreams::enqueue("backward");
  run(1, "other again");
  run(0, "third");
  future->wait();
  SimulatedStreams::enqueue("optimizer");
  EXPECT_FALSE(SimulatedStreams::precedes("first", "second")) << "of the same hook";
  for (const char* earlier : {"first", "second", "gradients"}) {
    EXPECT_TRUE(SimulatedStreams::precedes(earlier, "other")) << earlier;
  }
  EXPECT_FALSE(SimulatedStreams::precedes("first", "backward"));
  EXPECT_FALSE(SimulatedStreams::precedes("other", "backward"));
  EXPECT_FALSE(SimulatedStreams::precedes("other", "other again"));
  EXPECT_TRUE(SimulatedStreams::precedes("other", "third"));
  EXPECT_TRUE(SimulatedStreams::precedes("other again", "third"));
  EXPECT_TRUE(SimulatedStreams::precedes("other", "optimizer"));
}

TEST_F(HookTurnsTest, DoNothingOnTheCpu) {
  HookTurns turns;
  const at::Tensor bucket = at::ones({1});
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
  for (const size_t hook : {0, 1, 0}) {
    EXPECT_EQ(turns.run(hooks_[hook], bucket, [&] { return future; }), future) << "which is not complete";
  }
}

TEST_F(HookTurnsTest, DoNotKeepBucketsAlive) {
  HookTurns turns;
  at::Tensor bucket = SimulatedStreams::tensor();
  const c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> weak(bucket.getIntrusivePtr());
  turns.run(hooks_[0], bucket, [&] { return HookStream().run(bucket, noting("exchange", bucket)); });
  bucket.reset();
  EXPECT_TRUE(weak.expired());
}

}  // namespace
}  // namespace narrowcast::hooks
