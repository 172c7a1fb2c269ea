// How the hook auto detects a change of the link, with a simulated clock.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/errors.h>
#include "hooks/row/levels.h"
#include "hooks/table/auto_hook.h"
#include "hooks/table/hook_table.h"
#include "tests/hooks/all/bucket.h"
#include "tests/hooks/all/run_hook.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::hooks {
namespace {

using node::NodeLayout;
using ::testing::HasSubstr;
using testing::run_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

// On a link of 100 Gbit/s allreduce is fastest, because it computes least; on a slower one, a hook that sends less.
WireOptions fast_link() { return {.node_size = 1, .link_gbit = 100, .link_us = 1}; }
constexpr int64_t kLargeNumel = 1'000'000;
at::Tensor gradients_of(int64_t seed) {
  return at::full({kLargeNumel}, 1e-3 * static_cast<double>(seed + 1), at::kFloat);
}

ExchangeCost on_fast_link(const std::string& name) {
  const std::map<std::string, double> local{{"allreduce", 1e-9}, {"bf16_compress", 3e-9}, {"int8", 5e-9}};
  const NodeLayout layout = NodeLayout::flat(3);
  ExchangeCost cost = cost_on_link(name, {nullptr, fast_link()}, layout, with_given_link({}, fast_link(), layout));
  cost.seconds_per_element += local.at(name);
  return cost;
}

// A clock that advances by the time of an exchange at each reading: at the begin and at the end of an exchange.
struct ExchangeClock {
  std::shared_ptr<std::atomic<double>> time = std::make_shared<std::atomic<double>>(0);
  std::shared_ptr<std::atomic<double>> seconds_of_exchange = std::make_shared<std::atomic<double>>(0);
  double operator()() const { return *time = *time + *seconds_of_exchange; }
};

constexpr int64_t kWindow = 3;

// The link's part of that time.
double sent_on_fast_link(const std::string& name) {
  const NodeLayout layout = NodeLayout::flat(3);
  return cost_on_link(name, {nullptr, fast_link()}, layout, with_given_link({}, fast_link(), layout)).of(kLargeNumel);
}

// Runs steps of one bucket, which the hook passes to `name`. The link takes `link` times as long as fast_link().
void take_steps(AutoHook& hook, const ExchangeClock& clock, int64_t steps, double link, const std::string& name) {
  const double sent = sent_on_fast_link(name);
  *clock.seconds_of_exchange = on_fast_link(name).of(kLargeNumel) - sent + link * sent;
  for (int64_t step = 0; step < steps; ++step) run_on(hook, make_bucket(gradients_of(step)));
}

TEST(AutoHookOnALink, DecidesAgainWhenTheLinkHasChanged) {
  run_ranks(3, [](int64_t rank, const Group& group) {
    const ExchangeClock clock;
    AutoHook hook(hook_row("auto"), {group, fast_link()}, {.cost = on_fast_link, .now = clock, .window = kWindow});
    EXPECT_EQ(hook.hook_for(kLargeNumel), "allreduce");
    take_steps(hook, clock, 4 * kWindow, 1.3, "allreduce");
    EXPECT_EQ(hook.changes(), 0) << "less than a third away";
    take_steps(hook, clock, 4 * kWindow, rank == 1 ? 1 : 50, "allreduce");
    EXPECT_EQ(hook.changes(), 0) << "rank 1 was not waiting: the others waited for it";
    take_steps(hook, clock, 3 * kWindow, 50, "allreduce");
    EXPECT_GE(hook.changes(), 1);
    EXPECT_EQ(hook.hook_for(kLargeNumel), "int8");
    EXPECT_THAT(hook.decision(), HasSubstr("decided again"));
    const at::Tensor mean = run_on(hook, make_bucket(gradients_of(rank)));
    std::vector<at::Tensor> sum{mean.clone()};
    group->allreduce(sum)->wait();
    EXPECT_TRUE(at::allclose(sum[0], mean * 3, 1e-6, 0));
  });
}

TEST(AutoHookOnALink, WatchesTheLinkOnlyWhileItAveragesAllElements) {
  run_ranks(3, [](int64_t, const Group& group) {
    const ExchangeClock clock;
    AutoHook hook(hook_row("auto"), {group, fast_link()}, {.cost = on_fast_link, .now = clock, .window = kWindow});
    hook.average_shards(ShardRounding());
    take_steps(hook, clock, 4 * kWindow, 50, "allreduce");
    EXPECT_EQ(hook.changes(), 0) << "half an average may take less than predicted";
    hook.average_shards(std::nullopt);
    take_steps(hook, clock, 4 * kWindow, 1, "allreduce");
    EXPECT_EQ(hook.changes(), 0) << "what was seen before does not count";
    take_steps(hook, clock, 4 * kWindow, 50, "allreduce");
    EXPECT_GE(hook.changes(), 1);
  });
}

// In an all-reduce by allreduce on that link, the link takes 0.43 of 1.43 ms. If it takes twice as long, the total is
// 1.3 times as long.
TEST(AutoHookOnALink, NoticesAChangeOfTheLinkThatIsLittleOfAnExchange) {
  run_ranks(3, [](int64_t, const Group& group) {
    const ExchangeClock clock;
    AutoHook hook(hook_row("auto"), {group, fast_link()}, {.cost = on_fast_link, .now = clock, .window = kWindow});
    take_steps(hook, clock, 4 * kWindow, 2, "allreduce");
    EXPECT_EQ(hook.changes(), 1) << "and by as much, so that it is as predicted from then on";
    EXPECT_NEAR(*hook.predicted_seconds(kLargeNumel), *clock.seconds_of_exchange, 1e-9);
  });
}

TEST(AutoHookOnALink, DecidesAgainOnAFasterLink) {
  WireOptions slow = fast_link();
  slow.link_gbit = 1;
  const NodeLayout layout = NodeLayout::flat(3);
  const auto on_link = [=](const std::string& name, const WireOptions& wire) {
    return cost_on_link(name, {nullptr, wire}, layout, with_given_link({}, wire, layout)).of(kLargeNumel);
  };
  const auto rest_of = [](const std::string& name) {
    return on_fast_link(name).of(kLargeNumel) - sent_on_fast_link(name);
  };
  const auto on_slow_link = [=](const std::string& name) {
    return ExchangeCost{0, (rest_of(name) + on_link(name, slow)) / static_cast<double>(kLargeNumel)};
  };
  run_ranks(3, [=](int64_t, const Group& group) {
    const ExchangeClock clock;
    AutoHook hook(hook_row("auto"), {group, slow}, {.cost = on_slow_link, .now = clock, .window = kWindow});
    ASSERT_EQ(hook.hook_for(kLargeNumel), "int8");
    const auto steps_on_link = [&](double link) {
      for (int64_t step = 0; step < 4 * kWindow; ++step) {
        const std::string name = hook.hook_for(kLargeNumel);
        *clock.seconds_of_exchange = rest_of(name) + link * on_link(name, slow);
        run_on(hook, make_bucket(gradients_of(step)));
      }
    };
    steps_on_link(0.7);
    EXPECT_EQ(hook.changes(), 0) << "less than a third away";
    steps_on_link(0.6);
    EXPECT_EQ(hook.changes(), 1) << "the whole exchange is less than a third away";
    steps_on_link(0.02);
    EXPECT_GE(hook.changes(), 2);
    EXPECT_EQ(hook.hook_for(kLargeNumel), "allreduce");
    EXPECT_THAT(hook.decision(), HasSubstr("decided again "));
  });
}

// The link and the processors are busy equally long, so two concurrent exchanges may take half as long as two
// consecutive ones. Rank 1 begins when rank 0 has both in flight, and its clock shows that it waited.
TEST(AutoHookOnALink, TakesExchangesSideBySideForNoFasterLink) {
  const NodeLayout layout = NodeLayout::flat(2);
  const auto cost = [&](const std::string& name) {
    const ExchangeCost sent =
        cost_on_link(name, {nullptr, fast_link()}, layout, with_given_link({}, fast_link(), layout));
    return ExchangeCost{2 * sent.seconds, 2 * sent.seconds_per_element};
  };
  std::barrier<> both_are_in_flight(2);
  run_ranks(2, [&](int64_t rank, const Group& group) {
    const ExchangeClock clock;
    AutoHook hook(hook_row("auto"), {group, fast_link()}, {.cost = cost, .now = clock, .window = kWindow});
    *clock.seconds_of_exchange = (rank == 0 ? 1 : 100) * *hook.predicted_seconds(kLargeNumel);
    for (int64_t step = 0; step < 4 * kWindow; ++step) {
      if (rank == 1) both_are_in_flight.arrive_and_wait();
      std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
      for (size_t index : {0, 1}) {
        auto bucket = make_bucket(gradients_of(rank), index, 2);
        futures.push_back(hook.runHook(bucket));
      }
      if (rank == 0) both_are_in_flight.arrive_and_wait();
      for (const auto& future : futures) future->waitAndThrow();
    }
    EXPECT_EQ(hook.changes(), 0);
  });
}

TEST(AutoHookOnALink, ResumesWithTheLinkThatItHadFound) {
  run_ranks(3, [](int64_t, const Group& group) {
    const ExchangeClock clock;
    const AutoMeasures measures{.cost = on_fast_link, .now = clock, .window = kWindow};
    AutoHook hook(hook_row("auto"), {group, fast_link()}, measures);
    take_steps(hook, clock, 4 * kWindow, 2, "allreduce");
    HookState state = hook.state({});
    AutoHook resumed(hook_row("auto"), {group, fast_link()}, measures);
    EXPECT_THAT(resumed.decision(), HasSubstr("link 100 Gbit/s and 1.0 us"));
    resumed.load_state({.world_size = 3, .states = {state}, .first = state}, {});
    EXPECT_EQ(resumed.changes(), 1);
    EXPECT_THAT(resumed.decision(), HasSubstr("link 50.0 Gbit/s and 2.0 us"));
    EXPECT_THAT(resumed.decision(), HasSubstr("decided again 1 times"));

    state.erase("changes");  // Like checkpoints of older versions.
    state.erase("link");
    AutoHook older(hook_row("auto"), {group, fast_link()}, measures);
    older.load_state({.world_size = 3, .states = {state}, .first = state}, {});
    EXPECT_EQ(older.changes(), 0);
    EXPECT_THAT(older.decision(), HasSubstr("link 100 Gbit/s and 1.0 us"));
    EXPECT_EQ(older.predicted_seconds(kLargeNumel), resumed.predicted_seconds(kLargeNumel));
    state["link"] = at::tensor({1.0, 0.0}, at::kDouble);
    EXPECT_THAT(testing::error_message<CorruptInputError>(
                    [&] { older.load_state({.world_size = 3, .states = {state}, .first = state}, {}); }),
                HasSubstr("'link' must hold the seconds per hop and per byte"));
  });
}

}  // namespace
}  // namespace narrowcast::hooks
