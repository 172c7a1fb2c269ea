#include "hooks/table/exchange_cost.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <narrowcast/hooks.h>
#include "tests/support/ranks.h"

namespace narrowcast::hooks {
namespace {

TEST(GradientBuckets, HoldNormalNumbersOfTheirSeed) {
  const GradientBuckets buckets(100'000, 2, 7);
  EXPECT_NEAR(buckets.gradients().mean().item<double>(), 0, 5e-3 * 1e-3 * 4);
  EXPECT_NEAR(buckets.gradients().std().item<double>(), 1e-3, 1e-5);
  EXPECT_TRUE(at::equal(buckets.gradients(), GradientBuckets(100'000, 1, 7).gradients()));
  EXPECT_FALSE(at::equal(buckets.gradients(), GradientBuckets(100'000, 1, 8).gradients()));
}

TEST(GradientBuckets, AreAveragedInPlaceAndFilledAnew) {
  testing::run_ranks(2, [](int64_t rank, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    const GradientBuckets buckets(1000, 2, static_cast<uint64_t>(rank));
    const at::Tensor mean = (GradientBuckets(1000, 1, 0).gradients() + GradientBuckets(1000, 1, 1).gradients()) / 2;
    const auto hook = create_comm_hook("allreduce", {.process_group = group});
    buckets.fill();
    buckets.average(*hook);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(at::allclose(buckets.buffer(i), mean, 1e-6, 1e-10));
    }
    buckets.fill();
    EXPECT_TRUE(at::equal(buckets.buffer(1), buckets.gradients()));
  });
}

}  // namespace
}  // namespace narrowcast::hooks
