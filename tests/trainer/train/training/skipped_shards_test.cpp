// Trainings with shards, in which gradients of some steps are not finite.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include <narrowcast/char_gpt.h>
#include "tests/support/ranks.h"
#include "tests/trainer/train/training/small_text.h"
#include "trainer/train/training/training_loop.h"

namespace narrowcast::training {
namespace {

using testing::kSmallContext;
using testing::run_ranks;
using testing::small_text;
using testing::small_training;

// One element of the first parameter has a gradient that is not finite in some passes.
struct PoisonedGpt : models::CharGpt {
  using CharGpt::CharGpt;
  at::Tensor forward(const models::Batch& batch) override {
    const at::Tensor loss = CharGpt::forward(batch);
    const bool is_poisoned = is_training() && poisoned.contains(++passes);
    return is_poisoned ? loss + parameters()[0].flatten()[3] * factor : loss;
  }
  std::set<int64_t> poisoned;
  double factor = std::numeric_limits<double>::quiet_NaN();
  int64_t passes = 0;
};

struct SkippingShards {
  std::string name;
  OptimizerShards shards;
  std::optional<WireFormat> format = std::nullopt;
  Precision precision = Precision::kFp32;
};

void PrintTo(const SkippingShards& value, std::ostream* out) { *out << value.name; }

class SkippedShardTest : public ::testing::TestWithParam<SkippingShards> {
 protected:
  static constexpr int64_t kRanks = 4;

  // The parameters of each rank after six steps, of which the second and the fifth are skipped.
  static std::vector<std::vector<at::Tensor>> train_sharded(OptimizerShards shards) {
    const data::TextDataset dataset = small_text();
    std::vector<std::shared_ptr<PoisonedGpt>> models;
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      at::manual_seed(1);  // Before the threads, which share the generator.
      models.push_back(std::make_shared<PoisonedGpt>(
          models::CharGptOptions{.layers = 1,
                                 .width = 32,
                                 .context = kSmallContext,
                                 .vocabulary_size = dataset.corpus().vocabulary().size()}));
      if (rank == 1) models[rank]->poisoned = {2, 5};
      if (GetParam().precision == Precision::kFp16) models[rank]->factor = std::numeric_limits<double>::infinity();
    }
    std::vector<std::vector<at::Tensor>> parameters(kRanks);
    run_ranks(kRanks, [&](int64_t rank, const ProcessGroupPtr& group) {
      TrainingSetup setup = {.model = models[rank], .dataset = dataset, .group = group, .shards = shards};
      setup.ddp.hook("int8").wire({.node_size = 2, .link_gbit = 1, .link_us = 100});
      TrainingOptions options = small_training();
      options.precision = GetParam().precision;
      options.optimizer_shards = shards;
      options.parameter_format = shards == OptimizerShards::kAll ? GetParam().format : std::nullopt;
      EXPECT_EQ(train(setup, options).skipped_steps, 2) << "rank " << rank;
      parameters[rank] = models[rank]->parameters();
    });
    return parameters;
  }
};

// Two nodes of two ranks. One rank has the poisoned element in its shard. Differences of parameters give other bits
// than a training without shards, but the same on all ranks.
TEST_P(SkippedShardTest, AllRanksSkipTheSameStepsWithTheBitsOfNoShards) {
  const auto sharded = train_sharded(GetParam().shards);
  const bool is_exact = GetParam().shards == OptimizerShards::kNode || GetParam().format == WireFormat::kFp32;
  const auto whole = is_exact ? train_sharded(OptimizerShards::kOff) : sharded;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_TRUE(std::ranges::equal(sharded[rank], whole[0], at::equal)) << "rank " << rank;
    for (const at::Tensor& parameter : sharded[rank]) EXPECT_TRUE(parameter.isfinite().all().item<bool>());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shards, SkippedShardTest,
    ::testing::Values(SkippingShards{"node", OptimizerShards::kNode},
                      SkippingShards{"node_fp16", OptimizerShards::kNode, std::nullopt, Precision::kFp16},
                      SkippingShards{"all", OptimizerShards::kAll, WireFormat::kFp32},
                      SkippingShards{"all_fp16", OptimizerShards::kAll, WireFormat::kFp32, Precision::kFp16},
                      SkippingShards{"all_differences", OptimizerShards::kAll}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace narrowcast::training
