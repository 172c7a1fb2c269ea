#include "trainer/train/verification/is_last_check.h"

#include <gtest/gtest.h>

#include "tests/support/ranks.h"

namespace narrowcast::verification {
namespace {

TEST(CheckIsLast, PassesOnSeveralBuckets) {
  for (const int64_t world_size : {1, 2}) {
    testing::run_ranks(world_size, [](int64_t, const ProcessGroupPtr& group) {
      const IsLastResult result = check_is_last(group);
      EXPECT_TRUE(result.passed);
      // Ten layers that fill a bucket each, and the small one.
      EXPECT_GE(result.buckets, 10);
    });
  }
}

}  // namespace
}  // namespace narrowcast::verification
