#include "trainer/train/bench/measurements.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/hooks.h>
#include "hooks/table/exchange_cost.h"
#include "hooks/table/hook_table.h"
#include "tests/support/added_hook_row.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "trainer/train/bench/run_bench.h"

namespace narrowcast::bench {
namespace {

class LinkRateTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(LinkRateTest, IsTheSameOnAllRanks) {
  std::vector<LinkRate> links(static_cast<size_t>(GetParam()));
  testing::run_ranks(GetParam(), [&](int64_t rank, const ProcessGroupPtr& group) {
    links[static_cast<size_t>(rank)] = measure_link(
        group, {.pings = 3, .messages = 2, .message_seconds = 1e-3, .least_bytes = 1 << 16, .most_bytes = 1 << 20});
  });
  for (const LinkRate& link : links) {
    EXPECT_GT(link.gbit_per_second, 0);
    EXPECT_EQ(link.gbit_per_second, links[0].gbit_per_second);
    EXPECT_GT(link.round_trip_us, 0);
    EXPECT_EQ(link.round_trip_us, links[0].round_trip_us);
    EXPECT_GE(link.message_bytes, 1 << 16);
    EXPECT_LE(link.message_bytes, 1 << 20);
    EXPECT_EQ(link.message_bytes, links[0].message_bytes);
    EXPECT_GE(link.payload_bytes_sent, 2 * 3 * 16 + 2 * link.message_bytes) << "pings, echoes, and messages of a size";
    EXPECT_EQ(link.payload_bytes_sent, links[0].payload_bytes_sent);
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, LinkRateTest, ::testing::Values(2, 3));

// The results of each rank; all ranks are on one node unless the workload contains other nodes.
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
  // The first rank is alone on its node, the other two share one.
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

// Every hook of the table can be measured, even with the smallest bucket.
TEST(HookTimes, TakeEveryHook) {
  const auto measured = measure(2, {.hooks = measurable_hooks(), .numel = 1, .iterations = 1});
  for (const HookTime& time : measured[0].times) {
    EXPECT_EQ(time.milliseconds.size(), 1U) << time.hook;
  }
}

std::vector<Exactness> check_ranks(int64_t ranks, const std::vector<std::string>& hooks, int64_t numel,
                                   const hooks::WireOptions& wire = {.node_size = 1}) {
  std::vector<Exactness> checked(static_cast<size_t>(ranks));
  testing::run_ranks(ranks, [&](int64_t rank, const ProcessGroupPtr& group) {
    checked[static_cast<size_t>(rank)] = measure_exactness(group, hooks, numel, wire);
  });
  return checked;
}

// Every averaging hook of the table meets its tolerance and leaves equal replicas, in one-shot or two-shot.
TEST(HookExactness, IsWithinTheToleranceOfEveryHook) {
  const std::vector<std::string> names = hooks_to_measure({});
  for (const int64_t numel : {int64_t{1}, int64_t{1001}, int64_t{70'000}}) {
    const auto checked = check_ranks(3, names, numel);
    ASSERT_EQ(checked[0].hooks.size(), names.size());
    for (size_t i = 0; i < names.size(); ++i) {
      const HookExactness& exactness = checked[0].hooks[i];
      EXPECT_EQ(exactness.hook, names[i]);
      EXPECT_EQ(exactness.bucket_bytes, 4 * numel);
      EXPECT_EQ(exactness.outside_tolerance, 0) << exactness.hook << " " << numel;
      EXPECT_TRUE(exactness.replicas_equal) << exactness.hook;
    }
  }
}

TEST(HookExactness, TellsFormatsApart) {
  const auto checked =
      check_ranks(2, {"allreduce", "bf16_compress", "quantize_per_channel", "quantize_per_tensor", "int4"}, 50'000);
  const auto error = [&](size_t i) { return checked[0].hooks[i].squared_relative_error; };
  EXPECT_LT(error(0), 1e-13);
  EXPECT_GT(error(0), 0);
  EXPECT_GT(error(1), 1e-6);
  EXPECT_LT(error(1), 1e-5);
  EXPECT_GT(error(2), error(1));
  EXPECT_LT(error(2), 1e-3);
  EXPECT_GT(error(3), 1.5 * error(2));
  EXPECT_GT(error(4), error(3));
}

TEST(HookExactness, RoundsNothingOnOneNode) {
  const auto checked = check_ranks(2, {"int4"}, 50'000, {.node_size = 2});
  EXPECT_LT(checked[0].hooks[0].squared_relative_error, 1e-13);
}

// The mean of W ranks' independent numbers g has 1 / W of their variance, and g - mean has the rest.
TEST(HookExactness, FindsAHookThatAveragesNothing) {
  const auto checked = check_ranks(3, {"noop"}, 100'000);
  for (const Exactness& of_rank : checked) {
    EXPECT_NEAR(of_rank.hooks[0].squared_relative_error, 2, 0.05);
    EXPECT_EQ(of_rank.hooks[0].squared_relative_error, checked[0].hooks[0].squared_relative_error);
    EXPECT_GT(of_rank.hooks[0].outside_tolerance, 99'000);
    EXPECT_FALSE(of_rank.hooks[0].replicas_equal);
  }
}

// A float32 mean with one wrong element.
class OneWrongElement final : public hooks::CommHook {
 public:
  OneWrongElement(const hooks::HookOptions& options, float element)
      : mean_(hooks::create_comm_hook("allreduce", options)), element_(element) {}

  std::string_view name() const override { return "one_wrong_element"; }

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    auto mean = mean_->runHook(bucket);
    mean->waitAndThrow();
    bucket.getBuffer().data_ptr<float>()[bucket.getBuffer().numel() - 1] = element_;
    return mean;
  }

 private:
  std::unique_ptr<hooks::CommHook> mean_;
  float element_;
};

HookExactness with_one_wrong_element(float element) {
  hooks::HookRow row = hooks::hook_row("allreduce");
  row.name = "one_wrong_element";
  row.make = [element](const hooks::HookRow& /*row*/, const hooks::HookOptions& options) {
    return std::make_unique<OneWrongElement>(options, element);
  };
  const hooks::AddedHookRow added(row);
  return check_ranks(2, {"one_wrong_element"}, 1000)[1].hooks[0];
}

TEST(HookExactness, CountsElementsOutside) {
  const at::Tensor mean =
      (hooks::GradientBuckets(1000, 1, 0).gradients() + hooks::GradientBuckets(1000, 1, 1).gradients()) / 2;
  const HookExactness exactness = with_one_wrong_element(1);
  EXPECT_EQ(exactness.outside_tolerance, 1);
  EXPECT_TRUE(exactness.replicas_equal);
  const double off = 1 - mean[999].item<double>();
  EXPECT_NEAR(exactness.squared_relative_error, off * off / mean.to(at::kDouble).square().sum().item<double>(), 1e-3);
}

TEST(HookExactness, CountsWhatIsNoNumber) {
  const HookExactness exactness = with_one_wrong_element(std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(exactness.outside_tolerance, 1);
  EXPECT_TRUE(std::isinf(exactness.squared_relative_error));
}

TEST(HookExactness, CountsItsPayload) {
  const auto checked = check_ranks(2, {"allreduce", "noop"}, 1000);
  // The exact mean and both tolerances in float64, and one float32 bucket.
  EXPECT_EQ(checked[0].payload_bytes_sent, 3 * 8000 + 4000);
}

}  // namespace
}  // namespace narrowcast::bench
