#include "trainer/ddp/recovery/elastic_run.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/ddp.h>
#include <narrowcast/sharded_optimizer.h>
#include "ops/comm/groups/broken_groups.h"
#include "tests/support/breakable_group.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/recovery/elastic_ranks.h"

namespace narrowcast::recovery {
namespace {

using testing::error_message;
using ::testing::HasSubstr;
using testing::run_ranks;

class ElasticRunOfHooks : public ::testing::TestWithParam<Case> {};

// All ranks fail in a step, and one of them is lost. In steps 0 and 1 the buckets are not settled yet.
TEST_P(ElasticRunOfHooks, EndsWithTheBitsOfAnUndisturbedRun) {
  const Case& value = GetParam();
  const TensorMap expected = undisturbed(value);
  for (const int64_t step : {0, 1, 4, 7}) {
    for (const std::optional<int64_t> lost :
         {std::optional<int64_t>(), std::optional<int64_t>(0), std::optional<int64_t>(2)}) {
      Ranks ranks = new_ranks(value);
      for (auto& rank : ranks) {
        rank->program.failure = {step, value.copies_state ? Place::kBeforeZeroGrad : Place::kForward};
      }
      run_all(ranks, Outcome::kLoss);
      if (lost) ranks[*lost] = new_rank(value);
      recover(ranks);
      for (auto& rank : ranks) {
        SCOPED_TRACE(c10::str("step ", step, ", lost ", lost.value_or(-1)));
        expect_equal(rank->program.result(), expected);
        ASSERT_EQ(rank->program.recoveries.size(), 1);
        EXPECT_EQ(rank->program.recoveries[0].step, step < 2 ? 0 : step);
        EXPECT_EQ(rank->program.recoveries[0].lost_ranks, lost ? std::vector<int64_t>{*lost} : std::vector<int64_t>());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, ElasticRunOfHooks,
                         ::testing::Values(Case{"none"}, Case{"int8", "int8"}, Case{"int8_no_copies", "int8", false},
                                           Case{"buffers", "bf16_compress", true, true},
                                           Case{"connections", "int8", true, false, 3},
                                           Case{"connections_auto", "int8", true, false, hooks::kAutoConnections}),
                         [](const auto& info) { return info.param.name; });

// No other test of the CPU enqueues steps without waiting for them, as GPUs do.
TEST(ElasticRun, AStepWhoseCollectivesWereAbortedIsUndone) {
  const Case value{"none"};
  Ranks ranks = new_ranks(value);
  for (auto& rank : ranks) rank->program.failure = {4, Place::kBehindTheHost};
  run_all(ranks, Outcome::kLoss);
  for (auto& rank : ranks) EXPECT_EQ(rank->run.step(), 4) << "the step does not count";
  ranks[1] = new_rank(value);
  recover(ranks);
  for (auto& rank : ranks) expect_equal(rank->program.result(), undisturbed(value));
}

// Rank 0 has done step 4. The others fail at its end.
TEST(ElasticRun, RanksThatAreBehindGetTheFurthestState) {
  const Case value{"int8", "int8"};
  Ranks ranks = new_ranks(value);
  ranks[0]->program.failure = {5, Place::kForward};
  for (const int64_t rank : {1, 2}) ranks[rank]->program.failure = {4, Place::kAfterUpdate};
  run_all(ranks, Outcome::kLoss);
  EXPECT_EQ(ranks[0]->run.step(), 5);
  EXPECT_EQ(ranks[1]->run.step(), 4);
  recover(ranks);
  for (auto& rank : ranks) {
    expect_equal(rank->program.result(), undisturbed(value));
    EXPECT_EQ(rank->program.recoveries.at(0).step, 5);
  }
}

// All ranks stop after the same step, and continue there in the next group.
TEST(ElasticRun, TakesNewcomersInBetweenSteps) {
  const Case value{"int8", "int8"};
  Ranks ranks = new_ranks(value);
  std::vector<AttemptEnd> ends(static_cast<size_t>(kRanks));
  testing::run_ranks(kRanks, [&](int64_t rank, const ProcessGroupPtr& group) {
    ends[rank] = ranks[rank]->run.take_steps(group, {}, [rank] { return rank == 1 ? kNewcomers : 0; });
  });
  EXPECT_THAT(ends, ::testing::Each(AttemptEnd::kRegroup));
  for (auto& rank : ranks) {
    EXPECT_EQ(rank->run.step(), ranks[0]->run.step());
    EXPECT_LT(rank->run.step(), kSteps);
  }
  ranks[2] = new_rank(value);  // The newcomer.
  recover(ranks);
  for (auto& rank : ranks) expect_equal(rank->program.result(), undisturbed(value));
}

// Ranks 0 and 1 wait until all have taken the last step.
TEST(ElasticRun, ARankThatIsLostInTheLastStepGetsItsResult) {
  const Case value{"none"};
  Ranks ranks = new_ranks(value);
  ranks[2]->program.failure = {kSteps - 1, Place::kAfterUpdate};
  run_all(ranks, Outcome::kLoss);
  ranks[2] = new_rank(value);
  recover(ranks);
  for (auto& rank : ranks) {
    expect_equal(rank->program.result(), undisturbed(value));
    EXPECT_EQ(rank->program.recoveries.at(0).step, kSteps);
  }
}

TEST(ElasticRun, LossesMayFollowEachOther) {
  const Case value{"int8", "int8"};
  Ranks ranks = new_ranks(value);
  int64_t lost = 0;
  for (const int64_t step : {2, 3, 3, 6}) {
    for (auto& rank : ranks) rank->program.failure = {step, Place::kAfterUpdate};
    run_all(ranks, Outcome::kLoss, {.env = {}, .interrupted_at = std::chrono::steady_clock::now()});
    ranks[lost++ % kRanks] = new_rank(value);
  }
  recover(ranks);
  for (auto& rank : ranks) expect_equal(rank->program.result(), undisturbed(value));
  EXPECT_EQ(ranks[1]->run.recoveries(), 3) << "it is new since the second loss";
}

// The groups' own steps are not made yet, or are just being made.
TEST(ElasticRun, ALossBeforeTheFirstStepBeginsAgain) {
  const Case value{"none"};
  Ranks ranks = new_ranks(value);
  const ElasticRun::MakeSteps make = std::exchange(ranks[1]->make, [](const ProcessGroupPtr&) -> ElasticSteps {
    lose();
    return {};
  });
  run_all(ranks, Outcome::kLoss);
  ranks[1]->make = make;
  recover(ranks);
  for (auto& rank : ranks) expect_equal(rank->program.result(), undisturbed(value));
}

TEST(ElasticRun, AStateThatDiffersBetweenRanksIsAnErrorOnAll) {
  Ranks ranks = new_ranks({"none"});
  ranks[1]->program.state.add("more", at::zeros({2}));
  ranks[0]->program.state.add("more", at::zeros({3}));
  ranks[2]->program.state.add("more", at::zeros({3}));
  run_ranks(kRanks, [&](int64_t rank, const ProcessGroupPtr& group) {
    EXPECT_EQ(error_message<c10::ValueError>([&] { ranks[rank]->run.take_steps(group, {}); }),
              "state 'more' differs between ranks: rank 0 has Float [3], rank 1 has Float [2]");
  });
}

TEST(ElasticRun, FirstStepsThatDifferAreAnErrorOnAll) {
  Ranks ranks = new_ranks({"none"});
  ranks[2]->program.options.first_step = 3;
  run_ranks(kRanks, [&](int64_t rank, const ProcessGroupPtr& group) {
    EXPECT_EQ(error_message<c10::ValueError>([&] { ranks[rank]->run.take_steps(group, {}); }),
              "first_step differs between ranks: rank 0 has 0, rank 2 has 3");
  });
}

// Steps that only add to a tensor, without a DistributedDataParallel.
struct Adding {
  at::Tensor sum = at::zeros({2});
  ElasticState state;
  ElasticOptions options;
  std::function<void(int64_t step)> before_end = [](int64_t) {};
  ElasticRun::MakeSteps make = [this](const ProcessGroupPtr& group) {
    ElasticSteps steps;
    steps.take = [this, group](int64_t step) {
      sum += all_reduce_sum(group, {1}).at(0);
      before_end(step);
      return step + 1 < kSteps;
    };
    return steps;
  };
  ElasticRun run{state, options, make};

  Adding() { state.add("sum", sum); }
};

TEST(ElasticRun, ATensorThatGrowsIsAnErrorThatNamesIt) {
  run_ranks(2, [&](int64_t, const ProcessGroupPtr& group) {
    Adding adding;
    adding.before_end = [&](int64_t step) {
      if (step == 3) adding.sum.resize_({4});
    };
    EXPECT_THAT(error_message<c10::ValueError>([&] { adding.run.take_steps(group, {}); }),
                HasSubstr("state: 'sum' was Float [2] and is now Float [4]"));
  });
}

TEST(ElasticRun, ATensorThatRanksShareIsAnErrorThatNamesIt) {
  run_ranks(2, [](int64_t, const ProcessGroupPtr& group) {
    Adding adding;
    torch::optim::AdamW adamw({adding.sum.detach().requires_grad_()}, torch::optim::AdamWOptions(0.01));
    const ShardedOptimizer sharded(adamw, group, ShardOptions().share_parameters(true));
    EXPECT_THAT(error_message<c10::ValueError>([&] { adding.run.take_steps(group, {}); }),
                HasSubstr("ElasticGroup cannot change state 'sum' of sizes [2], which lies in memory that the node's "
                          "ranks share"));
    EXPECT_EQ(adding.sum[0].item<double>(), 0);
  });
}

TEST(ElasticRun, WithoutRecoveryTheStepsRunOnce) {
  run_ranks(2, [&](int64_t, const ProcessGroupPtr& group) {
    Adding adding;
    adding.options.first_step = 2;
    adding.run.take_steps_once(group);
    EXPECT_EQ(adding.sum[0].item<double>(), 2 * (kSteps - 2));
    EXPECT_EQ(adding.run.step(), -1);
  });
}

// An error that is no loss leaves the state as it is.
TEST(ElasticRun, OtherErrorsAreTheCallers) {
  run_ranks(2, [&](int64_t, const ProcessGroupPtr& group) {
    Adding adding;
    adding.before_end = [](int64_t step) { TORCH_CHECK_INDEX(step < 4, "no data for step 4"); };
    EXPECT_EQ(error_message<c10::IndexError>([&] { adding.run.take_steps(group, {}); }), "no data for step 4");
    EXPECT_EQ(adding.run.step(), 4);
    EXPECT_EQ(adding.sum[0].item<double>(), 10);
  });
}

}  // namespace
}  // namespace narrowcast::recovery
