#include "trainer/train/bench/hook_times.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <narrowcast/comm_hook.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "trainer/train/bench/run_bench.h"

namespace narrowcast::bench {
namespace {

// What each rank got; all are on one node unless the workload says otherwise.
std::vector<HookTimes> measure(int64_t ranks, HookWorkload workload) {
  workload.nodes.resize(static_cast<size_t>(ranks));
  std::vector<HookTimes> measured(static_cast<size_t>(ranks));
  testing::run_ranks(ranks, [&](int64_t rank, const ProcessGroupPtr& group) {
    measured[static_cast<size_t>(rank)] = measure_hooks(group, workload);
  });
  return measured;
}

TEST(HookTimes, AreTheSlowestRanksInEveryIteration) {
  const auto measured = measure(3, {.hooks = {"allreduce", "noop", "quantize_per_tensor"},
                                    .numel = 1000,
                                    .buckets = 2,
                                    .warmup_iterations = 1,
                                    .iterations = 4});
  for (const HookTimes& of_rank : measured) {
    ASSERT_EQ(of_rank.times.size(), 3U);
    EXPECT_EQ(of_rank.times[2].hook, "quantize_per_tensor");
    for (size_t i = 0; i < of_rank.times.size(); ++i) {
      EXPECT_EQ(of_rank.times[i].milliseconds.size(), 4U);
      EXPECT_EQ(of_rank.times[i].milliseconds, measured[0].times[i].milliseconds);
      EXPECT_GT(of_rank.times[i].median_ms, 0);
      EXPECT_EQ(of_rank.times[i].bucket_bytes, 4000);
      EXPECT_EQ(of_rank.times[i].buckets, 2);
    }
  }
}

TEST(HookTimes, CountThePayloadOfOneIteration) {
  const auto measured = measure(
      2, {.hooks = {"allreduce", "noop"}, .numel = 1000, .buckets = 2, .warmup_iterations = 3, .iterations = 5});
  const int64_t expected = 2 * hooks::ring_all_reduce_bytes(4000, 2);
  EXPECT_EQ(measured[0].times[0].payload_bytes, expected);
  EXPECT_EQ(measured[0].times[1].payload_bytes, 0);
  EXPECT_EQ(measured[0].payload_bytes_sent, (3 + 5) * expected);
}

TEST(HookTimes, AddUpThePayloadOfANode) {
  // The first rank is alone, the other two are together.
  const auto measured =
      measure(3, {.hooks = {"allreduce", "quantize_per_tensor"}, .numel = 30'000, .iterations = 1, .nodes = {0, 1, 1}});
  const int64_t of_rank = hooks::ring_all_reduce_bytes(120'000, 3);
  for (const HookTimes& of_any : measured) {
    EXPECT_EQ(of_any.times[0].payload_bytes, of_rank);
    EXPECT_EQ(of_any.times[0].payload_bytes_per_node, 2 * of_rank);
    EXPECT_EQ(of_any.times[1].payload_bytes_per_node, 2 * 2 * 30'008);
  }
}

TEST(HookTimes, NeedTheNodeOfEachRank) {
  testing::run_ranks(2, [](int64_t, const ProcessGroupPtr& group) {
    const auto measure_without = [&] { measure_hooks(group, {.hooks = {"allreduce"}, .numel = 1, .nodes = {0}}); };
    EXPECT_THAT(testing::error_message<c10::ValueError>(measure_without),
                ::testing::HasSubstr("nodes: must name the node of each of 2 ranks, but has 1"));
  });
}

// Every hook of the table can be measured, also with the smallest bucket.
TEST(HookTimes, TakeEveryHook) {
  const auto measured = measure(2, {.hooks = measurable_hooks(), .numel = 1, .iterations = 1});
  for (const HookTime& time : measured[0].times) {
    EXPECT_EQ(time.milliseconds.size(), 1U) << time.hook;
  }
}

}  // namespace
}  // namespace narrowcast::bench
