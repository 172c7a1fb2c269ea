#include "hooks/table/exchange_cost.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <narrowcast/hooks.h>
#include "hooks/basic/basic_hooks.h"
#include "hooks/table/hook_table.h"
#include "ops/comm/link/link.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::hooks {
namespace {

using ::testing::HasSubstr;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using std::chrono::steady_clock;

// Keeps each rank's gradients, and sleeps for the given seconds per element.
class SlowHook final : public CommHook {
 public:
  explicit SlowHook(double seconds_per_element) : seconds_per_element_(seconds_per_element) {}

  std::string_view name() const override { return "slow"; }
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    sizes_.push_back(bucket.getBuffer().numel());
    const std::chrono::duration<double> time(seconds_per_element_ * static_cast<double>(sizes_.back()));
    for (const auto begin = steady_clock::now(); steady_clock::now() - begin < time;) {
    }
    return noop_->runHook(bucket);
  }

  // The elements of each bucket so far.
  const std::vector<int64_t>& sizes() const { return sizes_; }

 private:
  const double seconds_per_element_;
  const std::unique_ptr<CommHook> noop_ = make_noop_hook(hook_row(kNoExchangeHook), {});
  std::vector<int64_t> sizes_;
};

TEST(ExchangeCost, IsALine) {
  const ExchangeCost cost = {.seconds = 0.5, .seconds_per_element = 0.25};
  EXPECT_EQ(cost.of(0), 0.5);
  EXPECT_EQ(cost.of(10), 3);
}

class MeasureExchangeTest : public ::testing::TestWithParam<const char*> {};

TEST_P(MeasureExchangeTest, AllRanksAgreeOnALine) {
  const int64_t world_size = 3;
  std::vector<ExchangeCost> costs(world_size);
  testing::run_ranks(world_size, [&](int64_t rank, const Group& group) {
    HookOptions options{.process_group = group};
    if (wire_format_of(GetParam())) {
      options.wire.node_size = 1;  // Otherwise nothing would be sent.
    }
    const auto hook = create_comm_hook(GetParam(), options);
    costs[static_cast<size_t>(rank)] = measure_exchange(*hook, group, {.iterations = 3});
  });
  for (const ExchangeCost& cost : costs) {
    EXPECT_EQ(cost.seconds, costs[0].seconds);
    EXPECT_EQ(cost.seconds_per_element, costs[0].seconds_per_element);
  }
  EXPECT_GE(costs[0].seconds, 0);
  EXPECT_GE(costs[0].seconds_per_element, 0);
  EXPECT_GT(costs[0].of(1 << 14), 0);
}

INSTANTIATE_TEST_SUITE_P(Hooks, MeasureExchangeTest, ::testing::Values("allreduce", "quantize_per_channel", "int8"));

// The larger bucket takes a tenth of a second, the smaller one nearly nothing.
TEST(MeasureExchange, MoreElementsCostMore) {
  testing::run_ranks(2, [](int64_t, const Group& group) {
    SlowHook hook(1e-4);
    const ExchangeCost cost =
        measure_exchange(hook, group, {.small_numel = 1, .large_numel = 1000, .iterations = 1, .seconds = 30});
    EXPECT_GT(cost.seconds_per_element, 0);
    EXPECT_GT(cost.of(1000), cost.of(1));
  });
}

TEST(MeasureExchange, CountsTheSlowestRank) {
  static constexpr double kSecondsPerElement = 1e-5;
  static constexpr int64_t kLarge = 640;  // Takes 6.4 ms.
  testing::run_ranks(2, [](int64_t rank, const Group& group) {
    SlowHook hook(rank == 1 ? kSecondsPerElement : 0);
    const ExchangeCost cost = measure_exchange(hook, group, {.small_numel = 10, .large_numel = kLarge});
    // The fitted line passes through the slowest rank's time of kLarge, which is at least this product. Three
    // operations in float64 round it, each by a relative 2^-53.
    EXPECT_GE(cost.of(kLarge), kSecondsPerElement * kLarge * (1 - 1e-12));
    EXPECT_EQ(*std::max_element(hook.sizes().begin(), hook.sizes().end()), kLarge);
  });
}

// Waits for something else once, in the first bucket of 40 elements.
class InterruptedHook final : public CommHook {
 public:
  std::string_view name() const override { return "interrupted"; }
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    largest_ = std::max(largest_, bucket.getBuffer().numel());
    SlowHook slow(largest_ == 40 && !std::exchange(was_interrupted_, true) ? 5e-3 : 0);  // 0.2 s
    return slow.runHook(bucket);
  }
  int64_t largest() const { return largest_; }

 private:
  int64_t largest_ = 0;
  bool was_interrupted_ = false;
};

TEST(MeasureExchange, IsNotContentWithOneBucketThatTookLong) {
  testing::run_ranks(2, [](int64_t, const Group& group) {
    InterruptedHook hook;
    measure_exchange(hook, group, {.small_numel = 10, .large_numel = 640, .seconds = 0.8});
    EXPECT_EQ(hook.largest(), 640);
  });
}

// Among 10, 40, 160 and 640 elements, 40 is the first size that takes more than an eighth of the available time.
TEST(MeasureExchange, IsContentWithSmallerBucketsWhereTheyTakeLong) {
  testing::run_ranks(2, [](int64_t, const Group& group) {
    SlowHook hook(1e-3);
    const ExchangeCost cost = measure_exchange(hook, group, {.small_numel = 10, .large_numel = 640, .seconds = 0.1});
    EXPECT_GE(cost.of(40), 40e-3 * (1 - 1e-12));
    EXPECT_EQ(*std::max_element(hook.sizes().begin(), hook.sizes().end()), 40);
    // The size 10 runs once unmeasured and the size 40 twice. Then each runs until half of the time, 50 ms, is spent:
    // at most 5 runs of 10 ms and 2 of 40 ms.
    EXPECT_LE(hook.sizes().size(), 10u);
  });
}

TEST(MeasureExchange, MeasuresEachSizeAtLeastOnceAndAtMostAsOftenAsItIsTold) {
  testing::run_ranks(2, [](int64_t, const Group& group) {
    SlowHook once(1e-3);
    measure_exchange(once, group, {.small_numel = 4, .large_numel = 8, .seconds = 1e-3});
    EXPECT_THAT(once.sizes(), ::testing::ElementsAre(4, 4, 8, 8));
    SlowHook twice(0);
    measure_exchange(twice, group, {.small_numel = 4, .large_numel = 8, .iterations = 2, .seconds = 1000});
    EXPECT_THAT(twice.sizes(), ::testing::ElementsAre(4, 4, 4, 8, 8, 8));
  });
}

TEST(MeasureExchange, CountsWhatItSends) {
  testing::run_ranks(2, [](int64_t, const Group& group) {
    const auto hook = create_comm_hook("allreduce", {group});
    measure_exchange(*hook, group, {.small_numel = 4, .large_numel = 8, .iterations = 1});
    EXPECT_EQ(collectives::measuring_bytes_sent(group), hook->payload_bytes_sent());
    const int64_t sent = hook->payload_bytes_sent();
    EXPECT_GE(sent, 4 * (4 + 4 + 8 + 8));
    measure_exchange(*hook, group, {.small_numel = 4, .large_numel = 8, .iterations = 1});
    EXPECT_EQ(collectives::measuring_bytes_sent(group), hook->payload_bytes_sent()) << "nothing twice";
    EXPECT_GT(hook->payload_bytes_sent(), sent);
  });
}

TEST(MeasureExchange, RefusesWhatCannotBeMeasured) {
  testing::run_ranks(1, [](int64_t, const Group& group) {
    SlowHook hook(0);
    const auto error_of = [&](const CostMeasurement& options) {
      return testing::error_message<c10::ValueError>([&] { measure_exchange(hook, group, options); });
    };
    EXPECT_THAT(error_of({.small_numel = 0}), HasSubstr("small_numel: must be at least 1, but is 0"));
    EXPECT_THAT(error_of({.small_numel = 8, .large_numel = 8}), HasSubstr("large_numel: must be greater"));
    EXPECT_THAT(error_of({.iterations = 0}), HasSubstr("iterations: must be at least 1, but is 0"));
    EXPECT_THAT(error_of({.seconds = 0}), HasSubstr("seconds: must be positive, but is 0"));
    EXPECT_TRUE(hook.sizes().empty());
  });
}

}  // namespace
}  // namespace narrowcast::hooks
