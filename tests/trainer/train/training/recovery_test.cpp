#include "trainer/train/training/recovery.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/breakable_group.h"
#include "tests/support/ranks.h"
#include "tests/trainer/train/training/interrupted_runs.h"
#include "tests/trainer/train/training/resume_runs.h"
#include "trainer/ddp/recovery/stop_agreement.h"
#include "trainer/train/training/training_state.h"

namespace narrowcast::training {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::run_ranks;

// A state whose tensors follow from the step: other steps have other bits, and all ranks the same. `seconds` is a
// counter that differs between ranks.
SurvivingState state_at(int64_t step, int64_t rank, bool is_reported = false) {
  SurvivingState state = {.content = {.step = step, .training = {{"reductions", step}}, .replica = {}, .rank = {}},
                          .is_reported = is_reported};
  Counters counters;
  counters.step = step;
  counters.seconds = static_cast<double>(rank);
  counters.window_batches = 1;
  counters.window_steps = 1;
  counters.skipped_in_a_row = 0;
  counters.window_loss = static_cast<double>(10 * step + rank);
  save_counters(counters, state.content);
  const auto value = static_cast<double>(step);
  state.content.replica["model.weight"] = at::full({3, 5}, value);
  state.content.replica["model.half"] = at::full({7}, value, at::kHalf);
  state.content.replica["model.empty"] = at::zeros({0, 2});
  state.content.replica["model.steps"] = at::full({}, step, at::kLong);
  state.content.replica["optimizer.mask"] = at::ones({1}, at::kBool);
  state.content.replica["optimizer.moment"] = at::full({1000}, value + 0.5);
  state.content.rank["hook.step"] = at::full({}, 100 * step + rank, at::kLong);
  return state;
}

// Returns the result of each rank, if rank r has states[r]. States that name no world are of one with this size.
std::vector<std::optional<RecoveredState>> shared(std::vector<std::optional<SurvivingState>> states) {
  std::vector<std::optional<RecoveredState>> results(states.size());
  for (auto& state : states) {
    if (state && state->world_size == 1) state->world_size = std::ssize(states);
  }
  run_ranks(static_cast<int64_t>(states.size()),
            [&](int64_t rank, const ProcessGroupPtr& group) { results[rank] = share_states(group, states[rank]); });
  return results;
}

void expect_replica_of(const RecoveredState& recovered, int64_t step, int64_t counters_of) {
  EXPECT_EQ(recovered.restored.step, step);
  EXPECT_EQ(recovered.restored.training.at("reductions"), step);
  const SurvivingState expected = state_at(step, counters_of);
  ASSERT_EQ(recovered.restored.replica.size(), expected.content.replica.size());
  for (const auto& [name, tensor] : expected.content.replica) {
    const at::Tensor& found = recovered.restored.replica.at(name);
    EXPECT_EQ(found.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(found, tensor)) << name;
  }
}

class ShareStatesTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(ShareStatesTest, WithoutAStateThereIsNone) {
  for (const auto& result : shared(std::vector<std::optional<SurvivingState>>(static_cast<size_t>(GetParam())))) {
    EXPECT_FALSE(result.has_value());
  }
}

// Every rank is lost once. The survivors are at the same point, and send parts.
TEST_P(ShareStatesTest, ALostRankGetsTheStateFromAllSurvivors) {
  const int64_t world_size = GetParam();
  for (int64_t lost = 0; lost < world_size; ++lost) {
    std::vector<std::optional<SurvivingState>> states;
    for (int64_t rank = 0; rank < world_size; ++rank) {
      states.push_back(rank == lost ? std::nullopt : std::optional(state_at(4, rank)));
    }
    const auto results = shared(states);
    const int64_t first = lost == 0 ? 1 : 0;
    for (int64_t rank = 0; rank < world_size && world_size > 1; ++rank) {
      ASSERT_TRUE(results[rank].has_value());
      const RecoveredState& own = *results[rank];
      EXPECT_THAT(own.lost_ranks, ElementsAre(lost));
      EXPECT_FALSE(own.is_reported);
      EXPECT_EQ(own.restored.former.world_size, world_size);
      expect_replica_of(own, 4, rank == lost ? first : rank);
      const hooks::FormerRanks& former = own.restored.former;
      EXPECT_EQ(former.states.empty(), rank == lost);
      EXPECT_EQ(former.own().at("hook.step").item<int64_t>(), 400 + (rank == lost ? first : rank));
    }
  }
}

// Rank 0 did one step more, and rank 2 is lost. Counters of the hook, such as its steps, must be the same on all ranks.
TEST(ShareStates, ARankThatIsBehindGoesOnAsASource) {
  const auto results = shared({state_at(5, 0), state_at(4, 1), std::nullopt});
  for (int64_t rank = 0; rank < 3; ++rank) {
    expect_replica_of(*results[rank], 5, 0);
    EXPECT_THAT(results[rank]->lost_ranks, ElementsAre(2));
    const hooks::FormerRanks& former = results[rank]->restored.former;
    EXPECT_EQ(former.states.empty(), rank != 0) << "residuals of rank " << rank;
    EXPECT_EQ(former.own().at("hook.step").item<int64_t>(), 500);
    const Counters counters = load_counters(results[rank]->restored, 3);
    EXPECT_EQ(counters.window_loss, 50);
    EXPECT_EQ(counters.window_steps, 1);
  }
}

// The reports after step 4 are done on no rank that did it, but on rank 0, which resumed from there.
TEST(ShareStates, APointWhoseReportsAreDoneIsFurther) {
  SurvivingState reported = state_at(4, 0, /*is_reported=*/true);
  reported.content.replica["counters.window_batches"] = at::zeros({}, at::kLong);
  const auto results = shared({reported, state_at(4, 1)});
  EXPECT_TRUE(results[1]->is_reported);
  EXPECT_THAT(results[1]->lost_ranks, IsEmpty());
  EXPECT_EQ(load_counters(results[1]->restored, 2).window_batches, 0);
}
// Ranks 0 to 2 were four, and one is lost; then they get a newcomer. Their mean loss until the next report stays.
TEST(ShareStates, InAnotherWorldTheFormerOneIsKnownAndTheMeanLossStays) {
  const auto of_four = [](int64_t rank) {
    SurvivingState state = state_at(4, rank);
    state.world_size = 4;
    return state;
  };
  for (const bool has_newcomer : {false, true}) {
    std::vector<std::optional<SurvivingState>> states = {of_four(0), of_four(1), of_four(2)};
    if (has_newcomer) states.emplace_back();
    if (has_newcomer) states.emplace_back();
    const auto results = shared(states);
    double loss = 0;
    for (const auto& result : results) {
      EXPECT_EQ(result->former_ranks, 4);
      EXPECT_EQ(result->restored.former.world_size, 4);
      loss += load_counters(result->restored, std::ssize(states)).window_loss;
    }
    EXPECT_DOUBLE_EQ(loss / static_cast<double>(states.size()), 41) << "the mean of 40, 41 and 42";
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, ShareStatesTest, ::testing::Values(1, 3));

using resuming::kSteps;
using resuming::ResumeCase;

// A training of which all ranks are interrupted, and rank `lost` is then replaced by a new process.
struct Interruption {
  FailingModel::Failure failure = {};  // of all ranks
  int64_t fatal_look = 0;              // whether to stop, after a step; 0: none
  int64_t last_good_look = 0;          // The collectives of the next step are aborted, as on a GPU. 0: none
  std::optional<int64_t> lost;         // null: no rank
};

// Returns the models after kSteps.
Models train_through(int64_t world_size, const ResumeCase& value, const Interruption& interruption) {
  const TrainingOptions options = resuming::options_of(value);
  const data::TextDataset dataset = testing::small_text();
  Models models = new_models(world_size, value, interruption.failure);
  std::vector<std::optional<SurvivingState>> states(static_cast<size_t>(world_size));
  const auto run = [&](int64_t rank, const ProcessGroupPtr& group, bool is_interrupted) {
    std::optional<RecoveredState> recovered;
    if (!is_interrupted) recovered = share_states(group, states[rank]);
    int64_t looks = 0;
    Checkpoints checkpoints = {.restored = recovered ? &recovered->restored : nullptr,
                               .is_reported = !recovered || recovered->is_reported,
                               .surviving = &states[rank]};
    testing::BreakablePtr of_gpu;
    if (is_interrupted && interruption.last_good_look > 0) of_gpu = testing::add_breakable(group);
    checkpoints.asked_to_stop = [&]() -> int {
      ++looks;
      if (of_gpu != nullptr && looks == interruption.last_good_look) of_gpu->error = c10d::ErrorType::COMM_ERROR;
      TORCH_CHECK_WITH(DistBackendError, !is_interrupted || looks != interruption.fatal_look, "rank 0: rank 1 is lost");
      return 0;
    };
    train({.model = models[rank], .dataset = dataset, .group = group, .ddp = value.ddp, .checkpoints = checkpoints},
          options);
  };
  run_ranks(world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    EXPECT_THROW(run(rank, group, true), c10::DistBackendError);
  });
  if (interruption.lost) {
    states[*interruption.lost].reset();
    models[*interruption.lost] = new_models(world_size, value, {})[*interruption.lost];
  }
  EXPECT_EQ(std::ranges::count_if(states, [](const auto& state) { return state.has_value(); }),
            world_size - (interruption.lost ? 1 : 0));
  run_ranks(world_size, [&](int64_t rank, const ProcessGroupPtr& group) { run(rank, group, false); });
  return models;
}

std::vector<ResumeCase> cases() {
  const auto wire = [](const std::string& hook, bool is_stochastic) {
    hooks::WireOptions options{.node_size = 1, .link_gbit = 1, .link_us = 100};
    if (is_stochastic) options.stochastic_rounding_seed = 7;
    return resuming::small_buckets().hook(hook).wire(options);
  };
  return {{"none_sgd", resuming::small_buckets(), OptimizerKind::kSgd},
          {"int8_stochastic", wire("int8", true)},
          {"var5_accumulation", wire("var5", false), OptimizerKind::kAdamW, 2},
          {"int4_fp16", wire("int4", false), OptimizerKind::kAdamW, 1, 16, Precision::kFp16},
          {"bf16_static", resuming::small_buckets().hook("bf16_compress").static_graph(true)}};
}

class RecoveryTest : public ::testing::TestWithParam<ResumeCase> {};

TEST_P(RecoveryTest, EndsWithTheBitsOfATrainingThatWasNotInterrupted) {
  const ResumeCase& value = GetParam();
  const int64_t world_size = 3;
  const Models whole = train_undisturbed(world_size, value);
  const int64_t passes = 3 * value.accumulation_steps + 1;  // In step 4, or its first pass.
  for (const Interruption& interruption :
       {Interruption{.failure = {passes}, .lost = std::nullopt}, Interruption{.failure = {passes}, .lost = 0},
        Interruption{.failure = {passes + value.accumulation_steps - 1, true}, .lost = 2},
        Interruption{.failure = {passes + 2 * value.accumulation_steps - 1, true}, .lost = 0},
        Interruption{.fatal_look = 3, .lost = 1}}) {
    const Models recovered = train_through(world_size, value, interruption);
    for (int64_t rank = 0; rank < world_size; ++rank) {
      EXPECT_TRUE(resuming::equal_bits(*recovered[rank], *whole[rank]))
          << "pass " << interruption.failure.pass << ", look " << interruption.fatal_look << ", rank " << rank;
    }
  }
}

// The step ends like any other, because the host does not wait for the averages. Its update would be of no value.
TEST(RecoveryOfAbortedCollectives, AStepWhoseCollectivesWereAbortedChangesNothing) {
  const ResumeCase value = cases()[0];
  const Models whole = train_undisturbed(3, value);
  const Models recovered = train_through(3, value, {.last_good_look = 3, .lost = 1});
  for (const auto& model : recovered) EXPECT_TRUE(resuming::equal_bits(*model, *whole[0]));
}

INSTANTIATE_TEST_SUITE_P(Cases, RecoveryTest, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

// The sums of gradients have another order in another world, so the bits differ.
void expect_nearly_equal(const models::Model& model, const models::Model& expected) {
  const auto parameters = model.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(at::allclose(parameters[i], expected.parameters()[i], 1e-4, 1e-5)) << "parameter " << i;
  }
}

class WorldChangeTest : public ::testing::TestWithParam<std::pair<int64_t, int64_t>> {};

// All ranks stop after the same step, with a state that the ranks of the next group share.
TEST_P(WorldChangeTest, TakesInNewcomersAndGoesOnWithFewer) {
  const auto [before, after] = GetParam();
  const ResumeCase value = cases()[0];
  const TrainingOptions options = resuming::options_of(value);
  const data::TextDataset dataset = testing::small_text();
  const Models whole = train_undisturbed(after, value);
  Models models = new_models(std::max(before, after), value, {});
  std::vector<std::optional<SurvivingState>> states(models.size());
  run_ranks(before, [&](int64_t rank, const ProcessGroupPtr& group) {
    Checkpoints checkpoints = {.surviving = &states[rank]};
    checkpoints.asked_to_stop = [rank] { return rank == 0 ? recovery::kNewcomers : 0; };
    const TrainingResult result =
        train({.model = models[rank], .dataset = dataset, .group = group, .ddp = value.ddp, .checkpoints = checkpoints},
              options);
    EXPECT_TRUE(result.takes_in_newcomers);
  });
  for (int64_t rank = 0; rank < before; ++rank) {
    ASSERT_TRUE(states[rank].has_value());
    EXPECT_EQ(states[rank]->content.step, states[0]->content.step);
    EXPECT_LT(states[rank]->content.step, kSteps);
    EXPECT_TRUE(states[rank]->is_reported);
  }
  run_ranks(after, [&](int64_t rank, const ProcessGroupPtr& group) {
    std::optional<RecoveredState> recovered = share_states(group, states[rank]);
    const Checkpoints checkpoints = {.restored = &recovered->restored};
    train({.model = models[rank], .dataset = dataset, .group = group, .ddp = value.ddp, .checkpoints = checkpoints},
          options);
  });
  for (int64_t rank = 0; rank < after; ++rank) {
    EXPECT_TRUE(resuming::equal_bits(*models[rank], *models[0])) << "rank " << rank;
  }
  expect_nearly_equal(*models[0], *whole[0]);
}

INSTANTIATE_TEST_SUITE_P(Worlds, WorldChangeTest,
                         ::testing::Values(std::pair(2, 3), std::pair(3, 2), std::pair(1, 4), std::pair(4, 1)));

}  // namespace
}  // namespace narrowcast::training
