#include "hooks/noop.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <narrowcast/hooks.h>
#include "tests/hooks/bucket.h"
#include "tests/support/ranks.h"

namespace narrowcast::hooks {
namespace {

TEST(NoopHook, ReturnsTheBucketItselfAtOnce) {
  testing::run_ranks(1, [](int64_t, const auto& group) {
    const auto hook = create_comm_hook("noop", {group});
    auto bucket = make_bucket(at::ones({3}));
    const auto future = hook->runHook(bucket);
    ASSERT_TRUE(future->completed());
    EXPECT_TRUE(hook->parseHookResult(future->value()).is_same(bucket.getBuffer()));
    EXPECT_EQ(hook->payload_bytes_sent(), 0);
  });
}

TEST(NoopHook, LetsReplicasDiffer) {
  testing::run_ranks(1, [](int64_t, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    EXPECT_FALSE(create_comm_hook("noop", {group})->keeps_replicas_equal());
    EXPECT_TRUE(create_comm_hook("allreduce", {group})->keeps_replicas_equal());
  });
}

}  // namespace
}  // namespace narrowcast::hooks
