// The state of an outer optimizer in and between rounds of sync_seconds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include <narrowcast/errors.h>
#include <narrowcast/outer_optimizer.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/outer/seconds_fixtures.h"

namespace narrowcast::testing {
namespace {

using ::testing::HasSubstr;

OuterOptions options_of(WireFormat format) {
  const OuterOptions options = seconds_options().wire(outer_wire(format)).warmup_steps(1);
  return format == WireFormat::kFp32 ? options : OuterOptions(options).optimizer(OuterKind::kNesterov);
}

// Every rank saves after each of its steps. The states with the same number, in a round, belong together: a rank that
// has fewer steps in the round has its last state before the round's end.
TEST(OuterSecondsState, AResumedTrainingGoesOnWithTheSameBits) {
  constexpr int64_t kRounds = 4;
  for (const int64_t world : {2, 3, 4}) {
    for (const WireFormat format : {WireFormat::kFp32, WireFormat::kInt4B32}) {
      run_ranks(world, [&](int64_t rank, const auto& group) {
        Clock clock(seconds_per_step(rank));
        SmallTraining whole(rank);
        OuterOptimizer outer(*whole.inner, group, options_of(format).clock(clock.function()));
        outer.skip_step();  // the warm-up
        std::vector<std::vector<SavedRank>> rounds;
        for (int64_t round = 0; round < kRounds; ++round) {
          rounds.emplace_back();
          do {
            rounds.back().push_back(saved(whole, outer));
            clock.pass();
            whole.step(outer);
          } while (!outer.steps_are_common());
        }
        for (int64_t from = 0; from < kRounds; ++from) {
          const std::vector<SavedRank>& states = rounds[static_cast<size_t>(from)];
          for (size_t step = 0; step < 8; ++step) {
            const SavedRank& state = states[std::min(step, states.size() - 1)];
            Clock other_clock(seconds_per_step(rank));
            other_clock.now = 1024;  // Only differences of times matter.
            SmallTraining resumed(rank);
            OuterOptimizer other(*resumed.inner, group, options_of(format).clock(other_clock.function()));
            other.load_state(state.outer);
            resumed.set(state.parameters);
            EXPECT_EQ(other.steps_are_common(), step == 0);
            for (int64_t round = from; round < kRounds; ++round) take_round(resumed, other, other_clock);
            ASSERT_TRUE(at::equal(resumed.flat(), whole.flat())) << "from round " << from << ", step " << step;
            EXPECT_EQ(other.steps(), outer.steps());
            EXPECT_EQ(other.exchanges(), outer.exchanges());
          }
        }
      });
    }
  }
}

// In the middle of a round, three ranks have different numbers of steps. Two and four resume.
TEST(OuterSecondsState, AnotherWorldTakesTheReferenceAndTheLastCommonStep) {
  std::vector<SavedRank> left(3);
  at::Tensor reference;
  run_ranks(3, [&](int64_t rank, const auto& group) {
    Clock clock(seconds_per_step(rank));
    SmallTraining training(rank);
    OuterOptimizer outer(*training.inner, group, seconds_options().clock(clock.function()));
    take_round(training, outer, clock);
    for (int64_t step = 0; step < 3 - rank; ++step) {
      clock.pass();
      training.step(outer);
    }
    EXPECT_EQ(outer.steps(), 8 + 3 - rank);
    left[static_cast<size_t>(rank)] = saved(training, outer);
    if (rank == 0) reference = outer.reference().clone();
  });
  for (const int64_t world : {2, 4}) {
    run_ranks(world, [&](int64_t rank, const auto& group) {
      OuterState former{left[0].outer.replica, {.world_size = 3, .states = {}, .first = left[0].outer.rank.own()}};
      for (int64_t i = rank; i < 3; i += world) {
        former.rank.states.push_back(left[static_cast<size_t>(i)].outer.rank.own());
      }
      Clock clock(seconds_per_step(rank));
      clock.now = 1024;
      SmallTraining training(rank);
      OuterOptimizer outer(*training.inner, group, seconds_options().clock(clock.function()));
      outer.load_state(former);
      EXPECT_TRUE(at::equal(training.flat(), reference));
      EXPECT_EQ(outer.steps(), 8);
      EXPECT_TRUE(outer.steps_are_common());
      EXPECT_EQ(take_round(training, outer, clock), kStepsOfRank[rank]);
      EXPECT_TRUE(same_on_all_ranks(group, training.parameters));
    });
  }
}

TEST(OuterSecondsState, WhatDoesNotFitIsNamed) {
  run_ranks(1, [&](int64_t rank, const auto& group) {
    Clock clock(0.5);
    SmallTraining training(rank);
    OuterOptimizer outer(*training.inner, group, seconds_options().clock(clock.function()));
    clock.pass();
    training.step(outer);
    const SavedRank good = saved(training, outer);
    const auto refused = [&](const char* name, const at::Tensor& value) {
      OuterState bad = good.outer;
      bad.rank.states[0].erase(name);
      if (value.defined()) bad.rank.states[0].emplace(name, value);
      SmallTraining other(rank);
      OuterOptimizer resumed(*other.inner, group, seconds_options().clock(clock.function()));
      return error_message<CorruptInputError>([&] { resumed.load_state(bad); });
    };
    EXPECT_THAT(refused("round_steps", {}), HasSubstr("'round_steps'"));
    EXPECT_THAT(refused("round_steps", hooks::int_tensor(-1)), HasSubstr("must be at least 0, but is -1"));
    EXPECT_THAT(refused("round_seconds", {}), HasSubstr("'round_seconds' must be one float64"));
    EXPECT_THAT(refused("round_seconds", at::full({}, -1.0, at::kDouble)), HasSubstr("at least 0, but is -1"));
    EXPECT_THAT(refused("round_seconds", at::full({}, 1.0, at::kFloat)), HasSubstr("must be one float64"));
  });
}

}  // namespace
}  // namespace narrowcast::testing
