#include "trainer/train/bench/hook_times.h"

#include <gtest/gtest.h>

#include <narrowcast/comm_hook.h>
#include "tests/support/ranks.h"
#include "trainer/train/bench/run_bench.h"

namespace narrowcast::bench {
namespace {

// What each rank got.
std::vector<HookTimes> measure(int64_t ranks, const HookWorkload& workload) {
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

// Every hook of the table can be measured, also with the smallest bucket.
TEST(HookTimes, TakeEveryHook) {
  const auto measured = measure(2, {.hooks = measurable_hooks(), .numel = 1, .iterations = 1});
  for (const HookTime& time : measured[0].times) {
    EXPECT_EQ(time.milliseconds.size(), 1U) << time.hook;
  }
}

}  // namespace
}  // namespace narrowcast::bench
