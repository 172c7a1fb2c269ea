// A newcomer that is lost at the last message of load_pieces, so that some of the others know that all have their
// pieces, and some do not.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "tests/support/ranks.h"
#include "tests/trainer/train/training/interrupted_runs.h"
#include "tests/trainer/train/training/resume_runs.h"
#include "tests/trainer/train/training/watched_group.h"
#include "trainer/ddp/recovery/stop_agreement.h"
#include "trainer/train/training/recovery.h"

namespace narrowcast::training {
namespace {

using testing::run_ranks;

using States = std::vector<std::optional<SurvivingState>>;

constexpr int64_t kStepsInAll = 7;  // The newcomers come after 2 or 3 of them.

// A group of ranks, and how it shards the optimizer.
struct World {
  int64_t ranks;
  OptimizerShards shards = OptimizerShards::kAll;
  int64_t copies = 1;
};

struct Newcomers {
  std::string name;
  World before;
  World joined;
  std::vector<int64_t> places;    // Of the newcomers, in `joined`.
  std::vector<int64_t> informed;  // Former ranks that know that all have their pieces.
  World after;                    // Without the newcomers.
  int64_t node_size = 1;
  std::vector<int64_t> lost = {};  // Ranks of `before` that are lost at first. The newcomers replace them.
};

void PrintTo(const Newcomers& value, std::ostream* out) { *out << value.name; }

class LostNewcomer : public ::testing::TestWithParam<Newcomers> {
 protected:
  ResumeCase resume_case() const {
    return {"newcomers", resuming::small_buckets().hook("int8").wire(
                             {.node_size = GetParam().node_size, .link_gbit = 1, .link_us = 100})};
  }

  // Ends after that step.
  TrainingResult train_rank(const World& world, int64_t steps, const std::shared_ptr<models::Model>& model,
                            const ProcessGroupPtr& group, const Checkpoints& checkpoints) const {
    TrainingOptions options = resuming::options_of(resume_case());
    options.steps = steps;
    options.batch_size = 60;
    options.optimizer_shards = world.shards;
    options.shard_copies = world.copies;
    options.log_every = 100;
    options.eval_batches = 0;
    options.check_replicas_every = 1;
    const data::TextDataset dataset = testing::small_text();
    return train({.model = model,
                  .dataset = dataset,
                  .group = group,
                  .ddp = resume_case().ddp,
                  .shards = world.ranks == 1 ? OptimizerShards::kOff : world.shards,
                  .checkpoints = checkpoints},
                 options);
  }

  // The states of the first world when its ranks stop for newcomers. Returns the step.
  int64_t stop_for_newcomers(States& states) const {
    states.resize(GetParam().before.ranks);
    const Models models = new_models(GetParam().before.ranks, resume_case(), {});
    run_ranks(GetParam().before.ranks, [&](int64_t rank, const ProcessGroupPtr& group) {
      const auto asked = [] { return recovery::kNewcomers; };
      EXPECT_TRUE(train_rank(GetParam().before, kStepsInAll, models[rank], group,
                             {.surviving = &states[rank], .asked_to_stop = asked})
                      .takes_in_newcomers);
    });
    const int64_t step = states[0].value().content.step;
    for (const int64_t rank : GetParam().lost) states[rank].reset();
    std::erase_if(states, [](const auto& state) { return !state.has_value(); });
    return step;
  }

  // The newcomers join, and all ranks train until `steps`. Returns the number of a rank's all-gathers. If no step
  // follows, the last one is in load_pieces (load_training, if there are no pieces). With `cut`, newcomers are lost in
  // the all-gather of that number, which only the informed ranks end.
  int64_t join(States& states, int64_t steps, std::optional<int64_t> cut) const {
    const World& joined = GetParam().joined;
    const std::set<int64_t> newcomers(GetParam().places.begin(), GetParam().places.end());
    std::vector<int64_t> former;  // By rank, the former rank or -1.
    for (int64_t rank = 0, next = 0; rank < joined.ranks; ++rank)
      former.push_back(newcomers.contains(rank) ? -1 : next++);
    const Models models = new_models(joined.ranks, resume_case(), {});
    States of_newcomers(joined.ranks);
    std::vector<int64_t> gathers(joined.ranks, 0);
    const auto body = [&](int64_t rank, const ProcessGroupPtr& group) {
      std::optional<SurvivingState>& state = former[rank] < 0 ? of_newcomers[rank] : states[former[rank]];
      std::optional<RecoveredState> recovered = share_states(group, state);
      ASSERT_TRUE(recovered.has_value());
      const bool is_informed = former[rank] >= 0 && std::ranges::count(GetParam().informed, former[rank]) > 0;
      const auto after_gather = [&] {
        TORCH_CHECK_WITH(DistBackendError, ++gathers[rank] != cut || is_informed, "rank ", rank, ": a rank is lost");
      };
      const auto watched = testing::watched(
          group, [](int64_t /*peer*/, int64_t /*bytes*/) {}, after_gather);
      train_rank(joined, steps, models[rank], watched, {.restored = &recovered->restored, .surviving = &state});
    };
    run_ranks(joined.ranks, body);
    EXPECT_TRUE(cut || std::ranges::all_of(gathers, [&](int64_t count) { return count == gathers[0]; }));
    return gathers[0];
  }
};

TEST_P(LostNewcomer, LeavesTheOthersWithTheirState) {
  const Newcomers& value = GetParam();
  States undisturbed;
  const int64_t step = stop_for_newcomers(undisturbed);
  const int64_t last = join(undisturbed, step, std::nullopt);
  States states;
  ASSERT_EQ(stop_for_newcomers(states), step);
  EXPECT_THROW(join(states, kStepsInAll, last), c10::DistBackendError);
  const Models models = new_models(value.after.ranks, resume_case(), {});
  states.resize(value.after.ranks);
  run_ranks(value.after.ranks, [&](int64_t rank, const ProcessGroupPtr& group) {
    std::string why;
    std::optional<RecoveredState> recovered = share_states(group, states[rank], &why);
    ASSERT_TRUE(recovered.has_value()) << why;
    EXPECT_EQ(recovered->restored.step, step);
    train_rank(value.after, kStepsInAll, models[rank], group,
               {.restored = &recovered->restored, .surviving = &states[rank]});
  });
  if (value.after.ranks != value.before.ranks) return;
  const Models expected = new_models(value.before.ranks, resume_case(), {});
  run_ranks(value.before.ranks, [&](int64_t rank, const ProcessGroupPtr& group) {
    train_rank(value.before, kStepsInAll, expected[rank], group, {});
  });
  for (int64_t rank = 0; rank < value.after.ranks; ++rank) {
    EXPECT_TRUE(resuming::equal_bits(*models[rank], *expected[rank])) << "rank " << rank;
  }
}

constexpr World kTwice = {4, OptimizerShards::kAll, 2};
constexpr World kWithinNodes = {4, OptimizerShards::kNode};

// In `numbered_anew` four ranks have one node each. The last one is lost, and the newcomer becomes rank 0.
INSTANTIATE_TEST_SUITE_P(
    Worlds, LostNewcomer,
    ::testing::Values(
        Newcomers{"second_node", {2}, kTwice, {2, 3}, {0}, {2}, 2},
        Newcomers{"second_node_in_front", {2}, kTwice, {0, 1}, {1}, {2}, 2},
        Newcomers{"one_copy", {2}, {3}, {2}, {0}, {2}}, Newcomers{"one_copy_all_informed", {2}, {3}, {1}, {0, 1}, {2}},
        Newcomers{"one_rank", {1}, {2}, {1}, {0}, {1}}, Newcomers{"one_rank_in_front", {1}, {3}, {0, 1}, {0}, {1}},
        Newcomers{"numbered_anew", kTwice, kTwice, {0}, {0}, kTwice, 1, {3}},
        Newcomers{"numbered_anew_then_fewer", kTwice, kTwice, {0}, {0, 1}, {3, OptimizerShards::kAll, 2}, 1, {3}},
        Newcomers{"then_one_copy", kTwice, {3}, {0}, {1}, {2}, 2, {2, 3}},
        Newcomers{"within_nodes", kWithinNodes, kWithinNodes, {2}, {0, 1}, kWithinNodes, 2, {3}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace narrowcast::training
