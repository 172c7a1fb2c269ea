// A training that resumes from a checkpoint ends with the same bits as an uninterrupted one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <string>
#include <tuple>
#include <vector>

#include <narrowcast/hooks.h>
#include "tests/support/temporary_folder.h"
#include "tests/trainer/train/training/resume_runs.h"
#include "trainer/ddp/sharding/shared_parameters.h"
#include "trainer/train/checkpoint/checkpoint_folder.h"

namespace narrowcast::training::resuming {
namespace {

using testing::TemporaryFolder;

// The parts of a checkpoint besides the state of DistributedDataParallel: optimizers, gradient scalers, outer
// optimizers, counters and files. ResumeTrialsTest draws hooks and modes.
std::vector<ResumeCase> cases() {
  ResumeCase static_outer = streaming_in_groups(2, Precision::kFp32, "int8");
  static_outer.name = "static_outer";
  static_outer.ddp.static_graph(true).bucket_cap_mb(1e-5).first_bucket_mb(1e-5);
  ResumeCase sharded = {"sharded", small_buckets().hook("int8"), OptimizerKind::kSgd, 1, 16, Precision::kFp16};
  sharded.shards = OptimizerShards::kNode;
  ResumeCase shared = sharded;
  shared.name = "shared";
  shared.shares_parameters = true;
  ResumeCase over_all = sharded;
  over_all.name = "sharded_over_all";
  over_all.shards = OptimizerShards::kAll;
  ResumeCase differences = {"sharded_differences", small_buckets().hook("int8").wire(feedback(false))};
  differences.shards = OptimizerShards::kAll;
  differences.parameter_format = WireFormat::kInt4B32;
  ResumeCase muon_over_all = {"muon_sharded_differences", small_buckets().hook("int8"), OptimizerKind::kMuon};
  muon_over_all.shards = OptimizerShards::kAll;
  ResumeCase muon_outer = streaming_in_groups(1, Precision::kFp32, "allreduce");
  muon_outer.name = "muon_outer";
  muon_outer.optimizer = OptimizerKind::kMuon;
  return {
      muon_over_all,
      muon_outer,
      {"muon", small_buckets().hook("int8"), OptimizerKind::kMuon},
      sharded,
      shared,
      over_all,
      differences,
      {"none_sgd", small_buckets(), OptimizerKind::kSgd},
      {"int4_feedback_stochastic_accumulation", small_buckets().hook("int4").wire(feedback(true)),
       OptimizerKind::kAdamW, 2},
      {"static_auto", small_buckets().static_graph(true).hook("auto").wire({.error_feedback = true, .node_size = 1})},
      {"fp16", small_buckets().hook("int8").wire(feedback(false)), OptimizerKind::kAdamW, 1, 16, Precision::kFp16},
      chosen_buckets(),
      // The last step before PowerSGD starts comes before a checkpoint, or after one that leaves the loaded state
      // unchanged.
      {"power_sgd", small_buckets().hook("power_sgd_rank2").wire({.node_size = 1}).power_sgd({.start = 2})},
      static_outer,
      streaming_in_groups(1, Precision::kFp16, "allreduce"),
  };
}

class ResumeTest : public ::testing::TestWithParam<std::tuple<ResumeCase, int64_t>> {};

TEST_P(ResumeTest, EndsWithTheBitsOfATrainingThatWasNotInterrupted) {
  const auto& [value, world_size] = GetParam();
  const TemporaryFolder folder;
  const Models whole = models_of(world_size, value, 1);
  const auto expected = train_on(whole, {value, folder.path()});
  std::vector<int64_t> steps = checkpoint::checkpoint_steps(folder.path());
  // The buckets of a static graph are known after two steps.
  ASSERT_EQ(static_cast<int64_t>(steps.size()), value.ddp.static_graph() ? kSteps - 1 : kSteps);
  for (const int64_t from : {steps.back(), int64_t{3}, kSteps}) {
    const Models resumed = models_of(world_size, value, 2);
    const auto results = train_on(resumed, {value, folder.path(), from});
    for (int64_t rank = 0; rank < world_size; ++rank) {
      EXPECT_TRUE(equal_bits(*resumed[rank], *whole[rank])) << "from " << from << ", rank " << rank;
      EXPECT_EQ(results[rank].training_loss, expected[rank].training_loss);
      EXPECT_EQ(results[rank].validation_loss, expected[rank].validation_loss);
      EXPECT_EQ(results[rank].payload_bytes_sent, expected[rank].payload_bytes_sent);
      EXPECT_EQ(results[rank].payload_bytes_without_hook, expected[rank].payload_bytes_without_hook);
    }
  }
}

// All ranks stop when one is asked to, with a checkpoint from which they end with the same bits. The link is given
// here: trainings that measure it may choose different routes, which round differently.
TEST_P(ResumeTest, APreemptedTrainingLosesNothing) {
  auto [value, world_size] = GetParam();
  if (hooks::takes_wire_options(value.ddp.hook())) {
    hooks::WireOptions wire = value.ddp.wire();
    wire.link_gbit = 1;
    wire.link_us = 100;
    value.ddp.wire(wire);
  }
  const TemporaryFolder folder;
  const auto preempted = train_on(models_of(world_size, value, 1), {value, folder.path(), {}, {}, true});
  ASSERT_TRUE(preempted[0].preempted.has_value());
  const int64_t step = preempted[0].preempted->step;
  EXPECT_THAT(checkpoint::checkpoint_steps(folder.path()), ::testing::ElementsAre(step));
  EXPECT_LT(step, kSteps);
  for (const TrainingResult& result : preempted) {
    EXPECT_EQ(result.preempted->step, step);
    EXPECT_EQ(result.preempted->signal, SIGTERM);
    EXPECT_FALSE(result.stopped_early_at.has_value());
  }
  const TemporaryFolder other;
  const Models whole = models_of(world_size, value, 1);
  const auto expected = train_on(whole, {value, other.path()});
  const Models resumed = models_of(world_size, value, 2);
  const auto results = train_on(resumed, {value, folder.path(), step});
  if (value.ddp.hook() == "auto" || !value.ddp.bucket_cap_mb().has_value()) {
    // Measurements of the first steps decide in this case, and two trainings may choose differently.
    EXPECT_TRUE(std::isfinite(results[0].training_loss));
    return;
  }
  for (int64_t rank = 0; rank < world_size; ++rank) {
    EXPECT_TRUE(equal_bits(*resumed[rank], *whole[rank])) << "from " << step << ", rank " << rank;
    EXPECT_EQ(results[rank].training_loss, expected[rank].training_loss);
    EXPECT_EQ(results[rank].validation_loss, expected[rank].validation_loss);
    EXPECT_EQ(results[rank].payload_bytes_sent, expected[rank].payload_bytes_sent);
  }
}

// Also with checkpoints of each other: they are the same.
struct ShardsCase {
  std::string name;
  OptimizerShards shards = OptimizerShards::kNode;
  bool shares_parameters = false;
  std::optional<WireFormat> parameter_format = std::nullopt;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
};

class ShardedTraining : public ::testing::TestWithParam<ShardsCase> {};

TEST_P(ShardedTraining, HasTheBitsOfATrainingWithoutShards) {
  constexpr int64_t kRanks = 3;
  ResumeCase value = {"shards", small_buckets().hook("int8"), GetParam().optimizer};
  const TemporaryFolder folder;
  const TemporaryFolder sharded_folder;
  const Models whole = models_of(kRanks, value, 1);
  train_on(whole, {value, folder.path()});
  value.shards = GetParam().shards;
  value.shares_parameters = GetParam().shares_parameters;
  value.parameter_format = GetParam().parameter_format;
  const Models sharded = models_of(kRanks, value, 1);
  train_on(sharded, {value, sharded_folder.path()});
  const Models to_sharded = models_of(kRanks, value, 2);
  train_on(to_sharded, {value, folder.path(), 3});
  value.shards = OptimizerShards::kOff;
  value.parameter_format.reset();
  value.shares_parameters = false;
  const Models from_sharded = models_of(kRanks, value, 2);
  train_on(from_sharded, {value, sharded_folder.path(), 3});
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_TRUE(equal_bits(*sharded[rank], *whole[rank])) << "rank " << rank;
    EXPECT_TRUE(equal_bits(*to_sharded[rank], *whole[rank])) << "rank " << rank;
    EXPECT_TRUE(equal_bits(*from_sharded[rank], *whole[rank])) << "rank " << rank;
    EXPECT_EQ(sharding::is_shared(sharded[rank]->parameters()[0]), GetParam().shares_parameters);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, ShardedTraining,
    ::testing::Values(ShardsCase{"node"}, ShardsCase{"shared", OptimizerShards::kNode, true},
                      ShardsCase{"all", OptimizerShards::kAll, false, WireFormat::kFp32},
                      ShardsCase{"muon_node", OptimizerShards::kNode, false, std::nullopt, OptimizerKind::kMuon},
                      ShardsCase{"muon_shared", OptimizerShards::kNode, true, std::nullopt, OptimizerKind::kMuon},
                      ShardsCase{"muon_all", OptimizerShards::kAll, false, WireFormat::kFp32, OptimizerKind::kMuon}),
    [](const auto& info) { return info.param.name; });

std::string name_of(const ::testing::TestParamInfo<std::tuple<ResumeCase, int64_t>>& info) {
  return std::get<0>(info.param).name + "_" + std::to_string(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Cases, ResumeTest, ::testing::Combine(::testing::ValuesIn(cases()), ::testing::Values(1, 3)),
                         name_of);

}  // namespace
}  // namespace narrowcast::training::resuming
