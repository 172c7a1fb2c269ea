#include "trainer/train/training/training_state.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/errors.h>
#include <narrowcast/hooks.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"
#include "tests/trainer/train/training/resume_runs.h"
#include "trainer/base/files/open_file.h"
#include "trainer/train/checkpoint/checkpoint_folder.h"
#include "trainer/train/checkpoint/manifest.h"
#include "trainer/train/training/training_loop.h"

namespace narrowcast::training::resuming {
namespace {

using testing::error_message;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::small_text;
using testing::TemporaryFolder;

// Writing checkpoints changes nothing.
TEST(Resume, CheckpointsLeaveTheTrainingAlone) {
  const ResumeCase value = {"int4", DdpOptions().bucket_cap_mb(0.01).hook("int4").wire(feedback(true))};
  const TemporaryFolder folder;
  const Models with = models_of(2, value, 1);
  train_on(with, {value, folder.path()});
  const Models without = models_of(2, value, 1);
  const data::TextDataset dataset = small_text();
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    train({.model = without[rank], .dataset = dataset, .group = group, .ddp = value.ddp}, options_of(value));
  });
  EXPECT_TRUE(equal_bits(*with[0], *without[0]));
}

// SGD's steps are linear in the gradients. Between worlds gradients differ only by float32 roundings, about 1e-7 of
// gradients below 1, in six steps at a rate of 0.1 at most.
TEST(Resume, ContinuesInAWorldOfAnotherSize) {
  ResumeCase value = {"sgd", DdpOptions(), OptimizerKind::kSgd};
  const TemporaryFolder folder;
  const Models two = models_of(2, value, 1);
  const auto expected = train_on(two, {value, folder.path()});
  for (const int64_t world_size : {1, 3, 4}) {
    const Models other = models_of(world_size, value, 2);
    const auto results = train_on(other, {value, folder.path(), 3});
    for (size_t i = 0; i < two[0]->parameters().size(); ++i) {
      EXPECT_LT((other[0]->parameters()[i] - two[0]->parameters()[i]).abs().max().item<double>(), 1e-5);
    }
    EXPECT_NEAR(results[0].training_loss, expected[0].training_loss, 1e-5);
  }
  const auto int4 = [](const hooks::WireOptions& wire) { return small_buckets().hook("int4").wire(wire); };
  const std::vector<ResumeCase> others = {
      {"noop", small_buckets().hook("noop")},
      {"one_level", int4(feedback(false))},
      {"two_levels", int4(feedback(true, 2))},
      {"two_hops", DdpOptions().hook("int4").wire(feedback(true)), OptimizerKind::kSgd, 1, 128},
      chosen_buckets()};
  for (const ResumeCase& other : others) {
    const TemporaryFolder own;
    train_on(models_of(2, other, 1), {other, own.path()});
    EXPECT_TRUE(std::isfinite(*train_on(models_of(3, other, 2), {other, own.path(), 3})[2].validation_loss));
  }
}

using OwnTensors = std::vector<hooks::HookState>;

// Reads the per-rank state of `world_size` ranks: parameters, optimizer, gradient scaler and counters.
OwnTensors replicas_in(const std::string& folder, int64_t step, int64_t world_size) {
  OwnTensors replicas;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    const auto read = checkpoint::read_checkpoint(checkpoint::checkpoint_path(folder, step), rank, world_size);
    hooks::HookState own = read.restored.former.own();
    std::erase_if(own, [](const auto& entry) {
      return entry.first.starts_with("hook.") || entry.first.starts_with("outer.") ||
             entry.first == "counters.window_loss" || entry.first == "counters.seconds" ||
             entry.first == "counters.window_seconds";
    });
    replicas.push_back(std::move(own));
  }
  return replicas;
}

std::string first_difference(const hooks::HookState& a, const hooks::HookState& b) {
  for (const auto& [name, tensor] : a) {
    const auto other = b.find(name);
    if (other == b.end() || !at::equal(tensor, other->second)) {
      return name;
    }
  }
  return a.size() == b.size() ? "" : "their number";
}

// Ranks of one group are equal at every step, including ranks that were in different groups before. The world has
// another size, or the same size, in which each rank would otherwise continue with its own state.
TEST(Resume, RanksOfNewGroupsBeginAlike) {
  for (const Precision precision : {Precision::kFp32, Precision::kFp16}) {
    const ResumeCase pairs = streaming_in_groups(2, precision, "allreduce");
    const ResumeCase threes = streaming_in_groups(3, precision, "allreduce");
    const TemporaryFolder folder;
    train_on(models_of(4, pairs, 1), {pairs, folder.path()});
    const OwnTensors left = replicas_in(folder.path(), 3, 4);
    EXPECT_EQ(first_difference(left[0], left[1]), "");
    ASSERT_NE(first_difference(left[0], left[2]), "");
    for (const int64_t world : {3, 4}) {
      const TemporaryFolder next;
      const auto results = train_on(models_of(world, threes, 2), {threes, folder.path(), 3, next.path()});
      for (int64_t step = 4; step <= kSteps; ++step) {
        const OwnTensors replicas = replicas_in(next.path(), step, world);
        EXPECT_FALSE(replicas[0].empty());
        EXPECT_EQ(first_difference(replicas[0], replicas[1]), "") << world << " ranks, step " << step;
        EXPECT_EQ(first_difference(replicas[0], replicas[2]), "") << world << " ranks, step " << step;
      }
      EXPECT_TRUE(std::isfinite(*results[0].validation_loss));
    }
  }
}

// Adds random numbers of LibTorch's generator to what it learns, as dropout does.
class NoisyModel : public models::Model {
 public:
  NoisyModel() : weight_(register_parameter("weight", at::ones({3}))) {}
  at::Tensor forward(const models::Batch& batch) override {
    return (weight_ * batch.inputs.to(at::kFloat).mean() + at::rand({3})).square().sum();
  }
  models::ModelOptions options() const override { return {}; }
  at::Tensor weight() const { return weight_.detach(); }

 private:
  at::Tensor weight_;
};

// The draws of a step follow from the seed, the rank and the step.
TEST(Resume, DrawsTheSameRandomNumbers) {
  const ResumeCase value = {"none"};
  const TemporaryFolder folder;
  at::manual_seed(5);
  const auto whole = std::make_shared<NoisyModel>();
  train_on({whole}, {value, folder.path()});
  at::manual_seed(99);
  const auto resumed = std::make_shared<NoisyModel>();
  train_on({resumed}, {value, folder.path(), 3});
  EXPECT_TRUE(at::equal(whole->weight(), resumed->weight()));
}

TEST(Resume, RefusesTheCheckpointOfSomethingElse) {
  const ResumeCase value = {"none"};
  const TemporaryFolder folder;
  train_on(models_of(1, value, 1), {value, folder.path()});
  const auto complaint = [&](const ResumeCase& other) {
    return error_message<CorruptInputError>([&] { train_on(models_of(1, other, 1), {other, folder.path(), 3}); });
  };
  EXPECT_THAT(complaint({"wide", {}, OptimizerKind::kAdamW, 1, 32}), HasSubstr("step-00000003"));
  EXPECT_THAT(complaint({"sgd", {}, OptimizerKind::kSgd}), HasSubstr("step-00000003"));
  EXPECT_THAT(complaint({"int8", DdpOptions().hook("int8").wire({.node_size = 1})}),
              HasSubstr("the hook's state lacks"));
}

// Entries of a manifest with a correct checksum. Errors have our text, not that of the JSON library.
TEST(Resume, EntriesOfAnotherKindAreNamed) {
  const ResumeCase value = {"none"};
  const TemporaryFolder folder;
  train_on(models_of(1, value, 1), {value, folder.path()});
  const std::string path = checkpoint::checkpoint_path(folder.path(), 3) + "/" + checkpoint::kManifestName;
  const checkpoint::Manifest good = checkpoint::parse_manifest(files::read_file(path), path);
  const auto complaint = [&](const char* key, const nlohmann::json& entry) {
    checkpoint::Manifest changed = good;
    changed.training[key] = entry;
    std::ofstream(path) << checkpoint::format_manifest(changed);
    return error_message<CorruptInputError>([&] { train_on(models_of(1, value, 1), {value, folder.path(), 3}); });
  };
  EXPECT_THAT(complaint("buckets", nullptr), HasSubstr("its 'buckets' must be lists of names, but are 'null'"));
  EXPECT_THAT(complaint("buckets", {{"a", 7}}), HasSubstr("its 'buckets' must be lists of names, but are '{\"a\":7}'"));
  EXPECT_THAT(complaint("buckets", nlohmann::json::array({nlohmann::json::array({7})})),
              HasSubstr("its 'buckets' must be lists of names, but are '[[7]]'"));
  EXPECT_THAT(complaint("reductions", "x"), HasSubstr("its 'reductions' must be an integer, but is '\"x\"'"));
}

}  // namespace
}  // namespace narrowcast::training::resuming
