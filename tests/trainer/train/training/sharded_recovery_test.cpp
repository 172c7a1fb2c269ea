// Recovery in place of trainings whose ranks share the optimizer's state.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/support/ranks.h"
#include "tests/trainer/train/training/interrupted_runs.h"
#include "tests/trainer/train/training/resume_runs.h"
#include "trainer/train/training/recovery.h"

namespace narrowcast::training {
namespace {

using testing::run_ranks;

// Nodes by their size; the last one may have fewer ranks. Some ranks are lost in step 4.
struct ShardedLoss {
  int64_t world_size;
  int64_t node_size;
  std::vector<int64_t> lost;
  int64_t world_size_after;  // less: the last ranks are gone for good
  OptimizerShards shards_after = OptimizerShards::kNode;
  bool shares_parameters = false;
};

void PrintTo(const ShardedLoss& loss, std::ostream* out) {
  *out << loss.world_size << " in nodes of " << loss.node_size << ", then " << loss.world_size_after << " without "
       << ::testing::PrintToString(loss.lost) << (loss.shares_parameters ? ", shared" : "");
}

class ShardedRecoveryTest : public ::testing::TestWithParam<ShardedLoss> {};

// Returns whether the state was found in the ranks' memory.
bool train_through_loss(const ShardedLoss& loss, const ResumeCase& value, Models& models) {
  TrainingOptions options = resuming::options_of(value);
  options.check_replicas_every = 1;
  const data::TextDataset dataset = testing::small_text();
  std::vector<std::optional<SurvivingState>> states(models.size());
  run_ranks(loss.world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    EXPECT_THROW(train({.model = models[rank],
                        .dataset = dataset,
                        .group = group,
                        .ddp = value.ddp,
                        .shards = OptimizerShards::kNode,
                        .checkpoints = {.surviving = &states[rank]}},
                       options),
                 c10::DistBackendError);
  });
  for (const int64_t rank : loss.lost) {
    states[rank].reset();
    models[rank] = new_models(loss.world_size, value, {})[rank];
  }
  std::vector<int> is_found(models.size(), 0);
  run_ranks(loss.world_size_after, [&](int64_t rank, const ProcessGroupPtr& group) {
    std::string why;
    std::optional<RecoveredState> recovered = share_states(group, states[rank], &why);
    EXPECT_EQ(recovered.has_value(), why.empty());
    if (!recovered) return;
    is_found[rank] = 1;
    EXPECT_EQ(recovered->restored.step, 3);
    const bool has_optimizer = std::ranges::any_of(
        recovered->restored.replica, [](const auto& entry) { return entry.first.starts_with("optimizer."); });
    EXPECT_FALSE(has_optimizer) << "the whole state";
    train({.model = models[rank],
           .dataset = dataset,
           .group = group,
           .ddp = value.ddp,
           .shards = loss.shards_after,
           .checkpoints = {.restored = &recovered->restored, .surviving = &states[rank]}},
          options);
  });
  return is_found[0] == 1;
}

ResumeCase sharded_case(const ShardedLoss& loss, OptimizerKind kind) {
  return {"sharded",
          resuming::small_buckets().hook("int8").wire({.node_size = loss.node_size, .link_gbit = 1, .link_us = 100}),
          kind,
          1,
          16,
          Precision::kFp32,
          std::nullopt,
          OptimizerShards::kNode,
          std::nullopt,
          loss.shares_parameters};
}

TEST_P(ShardedRecoveryTest, TheShardsComeFromOtherNodes) {
  const ShardedLoss& loss = GetParam();
  const bool tries_all = loss.world_size == 3;  // In the other layouts one kind is enough.
  for (const OptimizerKind kind : tries_all
                                      ? std::vector{OptimizerKind::kAdamW, OptimizerKind::kSgd, OptimizerKind::kMuon}
                                      : std::vector{OptimizerKind::kAdamW}) {
    const ResumeCase value = sharded_case(loss, kind);
    Models models = new_models(loss.world_size, value, {.pass = 4, .is_in_backward = true});
    ASSERT_TRUE(train_through_loss(loss, value, models));
    ResumeCase unsharded = value;
    unsharded.shards = OptimizerShards::kOff;
    unsharded.shares_parameters = false;
    const Models whole = train_undisturbed(loss.world_size, unsharded);
    for (int64_t rank = 0; rank < loss.world_size_after; ++rank) {
      if (loss.world_size_after == loss.world_size) {
        EXPECT_TRUE(resuming::equal_bits(*models[rank], *whole[rank])) << "rank " << rank;
      }
      EXPECT_TRUE(resuming::equal_bits(*models[rank], *models[0])) << "rank " << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Nodes, ShardedRecoveryTest,
                         ::testing::Values(ShardedLoss{4, 2, {3}, 4}, ShardedLoss{4, 2, {0, 1}, 4},
                                           ShardedLoss{4, 2, {0, 3}, 4}, ShardedLoss{4, 3, {0}, 4},
                                           ShardedLoss{4, 3, {0, 1, 2}, 4}, ShardedLoss{4, 3, {3}, 4},
                                           ShardedLoss{3, 2, {1}, 3}, ShardedLoss{3, 2, {2}, 3},
                                           ShardedLoss{6, 2, {1, 3}, 6}, ShardedLoss{4, 2, {}, 2},
                                           ShardedLoss{6, 2, {}, 4}, ShardedLoss{4, 2, {}, 3},
                                           ShardedLoss{4, 2, {2}, 4, OptimizerShards::kOff},
                                           ShardedLoss{4, 2, {0}, 4, OptimizerShards::kNode, true},
                                           ShardedLoss{4, 2, {2, 3}, 4, OptimizerShards::kNode, true}));

TEST(ShardedRecovery, OnOneNodeTheShardOfALostRankIsLost) {
  const ShardedLoss loss{2, 2, {1}, 2};
  const ResumeCase value = sharded_case(loss, OptimizerKind::kAdamW);
  Models models = new_models(loss.world_size, value, {.pass = 4, .is_in_backward = true});
  EXPECT_FALSE(train_through_loss(loss, value, models));
}

}  // namespace
}  // namespace narrowcast::training
