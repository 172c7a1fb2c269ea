// The hook auto on streams of a simulated device, with candidates that only enqueue work.
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <memory>
#include <string>

#include "hooks/row/execution.h"
#include "hooks/table/auto_hook.h"
#include "hooks/table/hook_table.h"
#include "tests/hooks/all/bucket.h"
#include "tests/support/added_hook_row.h"
#include "tests/support/ranks.h"
#include "tests/support/simulated_streams.h"

namespace narrowcast::hooks {
namespace {

using testing::SimulatedStreams;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

int milliseconds_of_work = 2;  // For each all-reduce of StreamHook.
int works = 0;

// Enqueues work with the names "NAME NUMBER", where all-reduces count the numbers up from 0.
class StreamHook final : public TableHook {
 public:
  using TableHook::TableHook;

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    const at::Tensor buffer = bucket.getBuffer();
    return streams_.run(HookStreams::place_of(bucket.getIndex()), buffer, [&] {
      for (int i = 0; i < milliseconds_of_work; ++i)
        SimulatedStreams::enqueue(row().name + " " + std::to_string(works++));
      return buffer;
    });
  }

 private:
  HookStreams streams_;
};

HookRow stream_row(const std::string& name) {
  return {.name = name,
          .make = [](const HookRow& row, const HookOptions&) { return std::make_unique<StreamHook>(row); },
          .payload_bytes = [](const GradientSizes& sizes, const auto&, const auto&) { return 4 * sizes.numel; },
          .error_terms = nullptr,
          .sent_with_auto = WireFormat::kFp32};
}

class AutoHookOnStreams : public ::testing::Test {
 protected:
  AutoHookOnStreams() {
    SimulatedStreams::reset();
    milliseconds_of_work = 2;
    works = 0;
  }

  // All-reduces take 2 ms, all of them on the link. `favourite` takes less.
  static std::unique_ptr<AutoHook> make(const Group& group, std::string* favourite) {
    const WireOptions wire{.node_size = 1, .link_gbit = 10, .link_us = 1000};
    const auto cost = [=](const std::string& name) {
      return ExchangeCost{name == *favourite ? 2e-3 : name.starts_with("stream") ? 3e-3 : 1, 0};
    };
    return std::make_unique<AutoHook>(hook_row("auto"), HookOptions{group, wire},
                                      AutoMeasures{.cost = cost, .window = 3, .device = testing::kSimulatedDevice});
  }

  static void take_step(CommHook& hook) {
    SimulatedStreams::enqueue("backward " + std::to_string(works++));
    auto bucket = make_bucket(SimulatedStreams::tensor());
    hook.runHook(bucket)->wait();
  }

  const AddedHookRow first_{stream_row("stream_a")};
  const AddedHookRow second_{stream_row("stream_b")};
};

TEST_F(AutoHookOnStreams, DecidesAgainByTheTimesOfTheStreams) {
  std::array<std::unique_ptr<AutoHook>, 2> hooks;
  std::barrier<> all_are_here(2);
  testing::run_ranks(2, [&](int64_t rank, const Group& group) {
    std::string favourite = "stream_a";
    hooks.at(static_cast<size_t>(rank)) = make(group, &favourite);
    all_are_here.arrive_and_wait();
    if (rank == 0) {  // The device is used from one thread.
      const auto take_steps = [&](int64_t steps) {
        for (int64_t step = 0; step < steps; ++step) {
          for (const auto& hook : hooks) take_step(*hook);
        }
      };
      take_steps(9);
      EXPECT_EQ(hooks[0]->changes(), 0);
      milliseconds_of_work = 6;
      take_steps(9);
      for (const auto& hook : hooks) {
        EXPECT_EQ(hook->changes(), 1);
        EXPECT_NEAR(*hook->predicted_seconds(1), 6e-3, 1e-9);
      }
    }
    all_are_here.arrive_and_wait();  // Not by a collective, which would come before those of the hooks.
    hooks.at(static_cast<size_t>(rank)).reset();
  });
}

TEST_F(AutoHookOnStreams, TwoOfAGroupTakeTurns) {
  testing::run_ranks(1, [](int64_t, const Group& group) {
    std::string favourite = "stream_a";
    const auto first = make(group, &favourite);
    favourite = "stream_b";
    const auto second = make(group, &favourite);
    milliseconds_of_work = 1;
    for (const size_t index : {0, 1}) {
      for (AutoHook* hook : {first.get(), second.get()}) {
        auto bucket = make_bucket(SimulatedStreams::tensor(), index, 2);
        hook->runHook(bucket);
      }
    }
  });
  EXPECT_TRUE(SimulatedStreams::precedes("stream_a 0", "stream_b 1"));
  EXPECT_TRUE(SimulatedStreams::precedes("stream_b 1", "stream_a 2"));
  EXPECT_TRUE(SimulatedStreams::precedes("stream_a 2", "stream_b 3"));
}

}  // namespace
}  // namespace narrowcast::hooks
