// What is particular to the quantised hooks.
#include "hooks/gathered_mean_hook.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/hooks/bucket.h"
#include "tests/hooks/run_hook.h"
#include "tests/hooks/upstream_quantization.h"
#include "tests/support/error_message.h"

namespace narrowcast::hooks {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::wait_for_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

class GatheredMean : public ::testing::TestWithParam<std::string> {
 protected:
  static at::Tensor expected(const std::vector<at::Tensor>& buckets) {
    return GetParam() == "quantize_per_tensor" ? upstream::per_tensor_mean(buckets)
                                               : upstream::per_channel_mean(buckets);
  }
  static at::Tensor mean_of(const std::vector<at::Tensor>& buckets) { return run_hook(GetParam(), buckets)[0]; }
};

TEST_P(GatheredMean, CutsLargeBucketsIntoPieces) {
  at::manual_seed(1);
  const int64_t numel = 2 * (1 << 20) + 600;  // Two full pieces and a rest with a short row.
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const std::vector<at::Tensor> buckets{at::randn({numel}).to(dtype), at::randn({numel}).mul(3).to(dtype)};
    EXPECT_TRUE(at::equal(mean_of(buckets), expected(buckets)));
  }
}

TEST_P(GatheredMean, ReproducesTheReferenceCase) {
  // The case of PyTorch's own test: gradient x^(1 + rank) / 800 of a 40 x 20 parameter.
  at::manual_seed(2020);
  const at::Tensor x = at::randn({800});
  EXPECT_TRUE(at::equal(mean_of({x * 0.00125F, x * x * 0.00125F}), expected({x * 0.00125F, x * x * 0.00125F})));
}

TEST_P(GatheredMean, KeepsTheFloorOfTheScale) {
  // Below 2^-24 everything rounds to code 0: the reference loses it, and so must we.
  const at::Tensor tiny = at::full({700}, 5.9e-8F);
  EXPECT_TRUE(at::equal(mean_of({tiny, tiny}), at::zeros({700})));
  EXPECT_TRUE(at::equal(expected({tiny, tiny}), at::zeros({700})));
}

TEST_P(GatheredMean, PassesOnWhatIsNotFinite) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    at::Tensor broken = at::ones({2000});
    broken[600] = bad;  // In the second row of four.
    const at::Tensor mean = mean_of({at::ones({2000}), broken});
    const bool per_tensor = GetParam() == "quantize_per_tensor";
    EXPECT_TRUE(mean.narrow(0, 512, 512).isnan().all().item<bool>()) << bad;
    EXPECT_EQ(mean.narrow(0, 0, 512).isnan().any().item<bool>(), per_tensor) << bad;
    EXPECT_EQ(mean.narrow(0, 1024, 976).isnan().any().item<bool>(), per_tensor) << bad;
  }
}

TEST_P(GatheredMean, RefusesWhatItCannotSend) {
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
    EXPECT_THAT(message(at::eye(4).to_sparse()), named("Sparse"));
    EXPECT_EQ(hook->payload_bytes_sent(), 0);
  });
}

TEST_P(GatheredMean, RefusesABucketThatIsStillInFlight) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    const auto hook = create_comm_hook(GetParam(), {group});
    auto bucket = make_bucket(at::ones({1000}));
    if (rank == 1) wait_for_ranks(group);  // Rank 0 cannot have finished before.
    const auto future = hook->runHook(bucket);
    if (rank == 0) {
      EXPECT_THROW(hook->runHook(bucket), c10::ValueError);
      wait_for_ranks(group);
    }
    future->waitAndThrow();
    hook->runHook(bucket)->waitAndThrow();
  });
}

INSTANTIATE_TEST_SUITE_P(Hooks, GatheredMean, ::testing::Values("quantize_per_tensor", "quantize_per_channel"));

}  // namespace
}  // namespace narrowcast::hooks
