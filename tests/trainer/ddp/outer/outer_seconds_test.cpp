// Rounds of sync_seconds, with clocks that the tests set: ranks take different numbers of steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include <narrowcast/outer_optimizer.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/outer/seconds_fixtures.h"

namespace narrowcast::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kWorlds[] = {2, 3, 4};

// All ranks in one process and float64, computed from the definition. `steps`: in each round, by rank.
class RoundSimulation {
 public:
  RoundSimulation(const OuterOptions& options, const std::vector<int64_t>& steps)
      : options_(options), steps_(steps), velocity_(at::zeros({51}, at::kDouble)) {
    for (size_t rank = 0; rank < steps.size(); ++rank) {
      targets_.push_back(SmallTraining(static_cast<int64_t>(rank)).flat_target().to(at::kDouble));
    }
    reference_ = SmallTraining(0).flat().to(at::kDouble);
  }

  const at::Tensor& round() {
    at::Tensor sum = at::zeros({51}, at::kDouble);
    for (size_t rank = 0; rank < steps_.size(); ++rank) {
      at::Tensor own = reference_.clone();
      for (int64_t step = 0; step < steps_[rank]; ++step) own -= kInnerRate * (own - targets_[rank]);
      sum += static_cast<double>(steps_[rank]) * (reference_ - own);
    }
    const at::Tensor mean = sum / static_cast<double>(std::accumulate(steps_.begin(), steps_.end(), int64_t{0}));
    const double momentum = options_.effective_momentum();
    velocity_.mul_(momentum).add_(mean);
    const bool looks_ahead = options_.optimizer() == OuterKind::kNesterov;
    reference_.sub_(options_.effective_learning_rate() * (looks_ahead ? mean + momentum * velocity_ : velocity_));
    return reference_;
  }

 private:
  const OuterOptions options_;
  const std::vector<int64_t> steps_;
  std::vector<at::Tensor> targets_;
  at::Tensor reference_;
  at::Tensor velocity_;
};

// As in the tests of sync_every, a step rounds numbers below 8 fewer than 16 times: the factor and the product with it
// are two more, and the factors' mean is 1. There are 5 rounds of 8 steps.
TEST(OuterSeconds, TheMeanIsWeightedByStepsAsInASimulationInFloat64) {
  constexpr double kTolerance = 40 * 16 * 8 * kUnit * 3;
  const OuterOptions cases[] = {seconds_options(), seconds_options().optimizer(OuterKind::kSgd).learning_rate(0.75),
                                seconds_options().optimizer(OuterKind::kNesterov)};
  for (const int64_t world : kWorlds) {
    for (const OuterOptions& options : cases) {
      run_ranks(world, [&](int64_t rank, const auto& group) {
        Clock clock(seconds_per_step(rank));
        SmallTraining training(rank);
        OuterOptimizer outer(*training.inner, group, OuterOptions(options).clock(clock.function()));
        RoundSimulation simulation(options, {kStepsOfRank, kStepsOfRank + world});
        for (int64_t round = 1; round <= 5; ++round) {
          EXPECT_EQ(take_round(training, outer, clock), kStepsOfRank[rank]);
          EXPECT_EQ(outer.steps(), 8 * round);
          EXPECT_EQ(outer.exchanges(), round);
          EXPECT_EQ(outer.staleness(), 0);
          EXPECT_EQ(outer.last_round()->fewest, kStepsOfRank[world - 1]);
          EXPECT_EQ(outer.last_round()->most, 8);
          const at::Tensor& expected = simulation.round();
          ASSERT_LE((outer.reference() - expected).abs().max().template item<double>(), kTolerance)
              << world << " ranks, round " << round;
          EXPECT_TRUE(at::equal(training.flat(), outer.reference()));
          EXPECT_TRUE(outer.replicas_are_equal());
          EXPECT_TRUE(same_on_all_ranks(group, {outer.reference()}));
        }
      });
    }
  }
}

TEST(OuterSeconds, ReplicasHaveTheSameBitsInEachFormat) {
  for (const WireFormat format : {WireFormat::kInt8B128, WireFormat::kVar5, WireFormat::kTop2P31}) {
    for (const int64_t world : kWorlds) {
      run_ranks(world, [&](int64_t rank, const auto& group) {
        Clock clock(seconds_per_step(rank));
        SmallTraining training(rank);
        OuterOptimizer outer(*training.inner, group,
                             seconds_options().wire(outer_wire(format)).clock(clock.function()));
        for (int64_t round = 0; round < 4; ++round) {
          const at::Tensor before = outer.reference().clone();
          take_round(training, outer, clock);
          EXPECT_FALSE(at::equal(outer.reference(), before));
          EXPECT_TRUE(same_on_all_ranks(group, {outer.reference(), training.flat()}));
        }
      });
    }
  }
}

TEST(OuterSeconds, EqualSpeedsHaveTheBitsOfSyncEvery) {
  for (const WireFormat format : {WireFormat::kFp32, WireFormat::kInt8B128, WireFormat::kTop2P31}) {
    run_ranks(3, [&](int64_t rank, const auto& group) {
      Clock clock(0.5);
      SmallTraining timed(rank);
      SmallTraining counted(rank);
      const OuterOptions options = OuterOptions().wire(outer_wire(format)).warmup_steps(1);
      OuterOptimizer by_time(*timed.inner, group, OuterOptions(options).sync_seconds(2).clock(clock.function()));
      OuterOptimizer by_steps(*counted.inner, group, OuterOptions(options).sync_every(4));
      by_time.skip_step();
      by_steps.skip_step();
      for (int64_t step = 0; step < 12; ++step) {
        clock.pass();
        timed.step(by_time);
        counted.step(by_steps);
        ASSERT_TRUE(at::equal(timed.flat(), counted.flat())) << "step " << step;
        EXPECT_EQ(by_time.steps(), by_steps.steps());
        EXPECT_EQ(by_time.steps_are_common(), step % 4 == 3);
        EXPECT_TRUE(by_steps.steps_are_common());
        EXPECT_EQ(by_time.replicas_are_equal(), by_steps.replicas_are_equal());
      }
    });
  }
}

// Gradients are the same in every step, so the way of the reference is known. Rank 1's speed changes with each round,
// and so do the weights. With error feedback the total error stays within a code of both hops; a residual that was
// scaled again, or not enough, would be another way.
TEST(OuterSeconds, ErrorFeedbackLosesNothingWhenWeightsChange) {
  constexpr int64_t kRounds = 60;
  for (const bool feedback : {true, false}) {
    run_ranks(2, [&](int64_t rank, const auto& group) {
      hooks::WireOptions wire = outer_wire(WireFormat::kInt8B128);
      wire.error_feedback = feedback;
      const at::Tensor parameter = at::zeros({1000}).requires_grad_();
      parameter.mutable_grad() = seeded_randn(static_cast<uint64_t>(rank), {1000});
      torch::optim::SGD sgd({parameter}, torch::optim::SGDOptions(0.25));
      Clock clock(0.5);
      OuterOptimizer outer(sgd, group, OuterOptions().sync_seconds(2).wire(wire).clock(clock.function()));
      const std::vector<at::Tensor> gradients = gathered(group, parameter.grad());
      at::Tensor way = at::zeros({1000});
      for (int64_t round = 0; round < kRounds; ++round) {
        const std::vector<double> steps = {4, round % 3 == 0 ? 2.0 : round % 3 == 1 ? 8.0 : 4.0};
        clock.seconds = 2 / steps[static_cast<size_t>(rank)];
        do {
          clock.pass();
          outer.step();
        } while (!outer.steps_are_common());
        for (size_t of = 0; of < 2; ++of) {
          way -= gradients[of] * (0.25 * steps[of] * steps[of] / (steps[0] + steps[1]));
        }
      }
      const double largest = 4 * 0.25 * 8 * 8 / (4 + 8) * 2;  // The bound is of a scaled difference.
      const double missing = (outer.reference() - way).abs().max().template item<double>();
      EXPECT_EQ(missing <= 2 * largest / 127, feedback) << missing;
    });
  }
}

TEST(OuterSeconds, ASkippedStepCountsAsAStep) {
  run_ranks(2, [&](int64_t rank, const auto& group) {
    const at::Tensor parameter = at::zeros({8}).requires_grad_();
    parameter.mutable_grad() = at::full({8}, -1.0);
    torch::optim::SGD sgd({parameter}, torch::optim::SGDOptions(1));
    Clock clock(rank == 0 ? 1 : 0.25);
    OuterOptimizer outer(sgd, group, seconds_options().clock(clock.function()));
    for (int64_t step = 0; step < (rank == 0 ? 2 : 8); ++step) {
      clock.pass();
      rank == 1 && step < 3 ? outer.skip_step() : outer.step();
    }
    EXPECT_EQ(outer.steps(), 8);
    const double expected = 0.2 * 2 + 0.8 * 5;  // Weights 2 and 8, moves 2 and 5.
    EXPECT_NEAR(parameter[0].template item<double>(), expected, 8 * 8 * kUnit) << "fewer than 8 roundings below 8";
  });
}

// The clock begins with the last step of the warm-up, in which ranks take steps together.
TEST(OuterSeconds, BeginsAfterTheWarmUp) {
  run_ranks(3, [&](int64_t rank, const auto& group) {
    Clock clock(seconds_per_step(rank));
    SmallTraining training(rank);
    OuterOptimizer outer(*training.inner, group, seconds_options().warmup_steps(30).clock(clock.function()));
    for (int64_t step = 1; step <= 30; ++step) {
      EXPECT_TRUE(outer.is_warming_up());
      clock.pass();
      outer.skip_step();
      outer.end_round();
      EXPECT_EQ(outer.steps(), step);
      EXPECT_TRUE(outer.steps_are_common());
      EXPECT_TRUE(outer.replicas_are_equal());
    }
    EXPECT_EQ(outer.exchanges(), 0);
    EXPECT_FALSE(outer.staleness().has_value());
    EXPECT_FALSE(outer.last_round().has_value());
    EXPECT_EQ(take_round(training, outer, clock), kStepsOfRank[rank]);
    EXPECT_EQ(outer.steps(), 38);
  });
}

// The clocks of the other ranks of a group would end their rounds after other numbers of steps.
TEST(OuterSeconds, TheFirstRankOfAGroupDecidesForItsRanks) {
  for (const std::vector<int64_t>& groups : {std::vector<int64_t>{0, 0, 1, 1}, {5, 7, 5, 7}, {0, 1, 1, 1}}) {
    run_ranks(4, [&](int64_t rank, const auto& group) {
      Clock clock(seconds_per_step(rank));
      SmallTraining training(rank);
      OuterOptimizer outer(*training.inner, group, seconds_options().clock(clock.function()), groups);
      const auto number = groups[static_cast<size_t>(rank)];
      const auto first = std::ranges::find(groups, number) - groups.begin();
      for (int64_t round = 1; round <= 3; ++round) {
        EXPECT_EQ(take_round(training, outer, clock), kStepsOfRank[first]) << "rank " << rank;
        EXPECT_EQ(outer.steps(), 8 * round);
        EXPECT_TRUE(same_on_all_ranks(group, training.parameters));
      }
    });
  }
}

// A loop as in the class's comment. Ranks arrive at the end with rounds that are not over.
TEST(OuterSeconds, TheEndKeepsTheStepsOfTheLastRound) {
  run_ranks(3, [&](int64_t rank, const auto& group) {
    Clock clock(seconds_per_step(rank));
    SmallTraining training(rank);
    OuterOptimizer outer(*training.inner, group, seconds_options().clock(clock.function()));
    int64_t own = 0;
    while (outer.steps() < 20) {
      clock.pass();
      training.step(outer);
      ++own;
    }
    const at::Tensor before = outer.reference().clone();
    const bool waits = !outer.steps_are_common();
    EXPECT_EQ(waits, rank == 0) << "others are in the round";
    outer.finish();
    EXPECT_EQ(at::equal(outer.reference(), before), !waits);
    EXPECT_EQ(own, rank == 0 ? 20 : 3 * kStepsOfRank[rank]);
    EXPECT_EQ(outer.steps(), 20);
    EXPECT_EQ(outer.exchanges(), 3);
    EXPECT_EQ(outer.last_round()->most, 4);
    EXPECT_TRUE(same_on_all_ranks(group, training.parameters));
    outer.finish();
    EXPECT_EQ(outer.exchanges(), 3) << "nothing is left to exchange";
  });
}

TEST(OuterSeconds, ARoundThatIsHeldDoesNotEnd) {
  run_ranks(2, [&](int64_t rank, const auto& group) {
    Clock clock(rank == 0 ? 1 : 8);
    SmallTraining training(rank);
    OuterOptimizer outer(*training.inner, group, seconds_options().clock(clock.function()));
    outer.hold_round();
    for (int64_t step = 1; step <= 3; ++step) {
      if (step == 3) outer.release_round();
      clock.pass();
      training.step(outer);
      EXPECT_EQ(outer.steps(), step);
      EXPECT_EQ(outer.exchanges(), step == 3 ? 1 : 0);
    }
    EXPECT_EQ(take_round(training, outer, clock), rank == 0 ? 2 : 1);
  });
}

TEST(OuterSeconds, TimeOfOtherWorkDoesNotCount) {
  run_ranks(1, [&](int64_t rank, const auto& group) {
    Clock clock(0.5);
    SmallTraining training(rank);
    OuterOptimizer outer(*training.inner, group, seconds_options().clock(clock.function()));
    clock.now += 100;
    outer.restart_clock();
    const auto look = [&] {
      const OuterOptimizer::OuterParameters parameters(outer);
      clock.now += 100;
    };
    look();
    for (int64_t step = 1; step <= 4; ++step) {
      look();
      outer.restart_clock();  // Has no effect in a round.
      clock.pass();
      training.step(outer);
      EXPECT_EQ(outer.exchanges(), step == 4 ? 1 : 0);
    }
    clock.now += 100;
    clock.pass();
    training.step(outer);
    EXPECT_EQ(outer.exchanges(), 2) << "a round has at least one step";
  });
}

TEST(OuterSeconds, ANanOnOneRankCostsItsRoundOnAllRanks) {
  run_ranks(3, [&](int64_t rank, const auto& group) {
    Clock clock(seconds_per_step(rank));
    SmallTraining training(rank);
    OuterOptimizer outer(*training.inner, group, seconds_options().clock(clock.function()));
    take_round(training, outer, clock);
    const at::Tensor before = outer.reference().clone();
    if (rank == 1) training.parameters[1].detach().fill_(std::numeric_limits<float>::quiet_NaN());
    take_round(training, outer, clock);
    EXPECT_EQ(outer.lost_exchanges(), 1);
    EXPECT_EQ(outer.steps(), 16);
    EXPECT_TRUE(at::equal(training.flat(), before));
    take_round(training, outer, clock);
    EXPECT_EQ(outer.lost_exchanges(), 1);
    EXPECT_TRUE(outer.reference().isfinite().all().template item<bool>());
  });
}

TEST(OuterSeconds, WrongGroupsAndOptionsThatDifferAreRefusedOnAllRanks) {
  run_ranks(3, [&](int64_t rank, const auto& group) {
    SmallTraining training(rank);
    const auto message = [&](const OuterOptions& options, const std::vector<int64_t>& groups) {
      return error_message<c10::ValueError>([&] { OuterOptimizer(*training.inner, group, options, groups); });
    };
    const std::vector<int64_t> two = {0, 0};
    EXPECT_THAT(message(seconds_options(), rank == 1 ? two : std::vector<int64_t>()),
                HasSubstr("groups: must have one number per rank (3), but has 2"));
    EXPECT_THAT(message(seconds_options(), {0, 0, rank == 2 ? 0 : 1}),
                HasSubstr("groups differs between ranks: rank 0 has {0, 0, 1}, rank 2 has {0, 0, 0}"));
    EXPECT_THAT(message(rank == 1 ? outer_options(3) : seconds_options(), {}), HasSubstr("differs between ranks"));
    EXPECT_THAT(message(seconds_options().sync_seconds(rank == 1 ? 3 : 4), {}),
                HasSubstr("sync_seconds differs between ranks: rank 0 has 4, rank 1 has 3"));
  });
}

}  // namespace
}  // namespace narrowcast::testing
