#include "trainer/train/training/training_state.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include <narrowcast/errors.h>
#include <narrowcast/hooks.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"
#include "tests/trainer/train/training/small_text.h"
#include "trainer/base/files/open_file.h"
#include "trainer/train/checkpoint/checkpoint_folder.h"
#include "trainer/train/checkpoint/manifest.h"
#include "trainer/train/training/training_loop.h"

namespace narrowcast::training {
namespace {

using checkpoint::CheckpointWriter;
using checkpoint::ReadCheckpoint;
using testing::error_message;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::small_models;
using testing::small_text;
using testing::TemporaryFolder;
using Models = std::vector<std::shared_ptr<models::Model>>;

// Trainings that resume from a checkpoint end with the same bits as uninterrupted ones.

constexpr int64_t kSteps = 6;

// The options for averaging and applying gradients.
struct Case {
  std::string name;
  DdpOptions ddp = {};
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  int64_t accumulation_steps = 1;
  int64_t width = 16;
  Precision precision = Precision::kFp32;
  std::optional<OuterOptions> outer = std::nullopt;
};

void PrintTo(const Case& value, std::ostream* out) { *out << value.name; }

TrainingOptions options_of(const Case& value) {
  TrainingOptions options;
  options.steps = kSteps;
  options.batch_size = 12;
  options.accumulation_steps = value.accumulation_steps;
  options.precision = value.precision;
  options.optimizer.kind = value.optimizer;
  options.optimizer.momentum = value.optimizer == OptimizerKind::kSgd ? 0.9 : 0;
  options.eval_batches = 1;
  options.log_every = 4;  // So that checkpoints are between reports.
  return options;
}

// Trains on `models.size()` ranks; writes checkpoints of all steps to `folder`, or resumes from one of them, and then
// writes to `next_folder` if there is one.
struct Run {
  const Case& value;
  std::string folder;
  std::optional<int64_t> from = std::nullopt;
  std::string next_folder = {};
  // Asks the last rank to stop, from its second check on. There is no other checkpoint then.
  bool is_preempted = false;
};

std::vector<TrainingResult> train_on(const Models& models, const Run& run) {
  const TrainingOptions options = options_of(run.value);
  const data::TextDataset dataset = small_text();
  std::vector<TrainingResult> results(models.size());
  run_ranks(static_cast<int64_t>(models.size()), [&](int64_t rank, const ProcessGroupPtr& group) {
    const bool writes = !run.from || !run.next_folder.empty();
    CheckpointWriter writer(group, {.folder = run.from ? run.next_folder : run.folder, .keep = 0}, {});
    std::optional<ReadCheckpoint> read;
    Checkpoints checkpoints = {.writer = writes ? &writer : nullptr, .every = 1};
    if (run.from) {
      read = checkpoint::read_on_all_ranks(group, checkpoint::checkpoint_path(run.folder, *run.from));
      checkpoints.restored = &read->restored;
    }
    int64_t looks = 0;
    if (run.is_preempted) {
      const bool is_last = rank + 1 == group->getSize();
      checkpoints.every = 1000;
      checkpoints.asked_to_stop = [&looks, is_last] { return ++looks > 1 && is_last ? SIGTERM : 0; };
    }
    results[rank] = train({.model = models[rank],
                           .dataset = dataset,
                           .group = group,
                           .ddp = run.value.ddp,
                           .outer = run.value.outer,
                           .units_per_sample = testing::kSmallContext,
                           .observer = nullptr,
                           .checkpoints = checkpoints},
                          options);
  });
  return results;
}

Models models_of(int64_t world_size, const Case& value, uint64_t seed) {
  Models models;
  const int64_t vocabulary_size = small_text().corpus().vocabulary().size();
  for (int64_t rank = 0; rank < world_size; ++rank) {
    at::manual_seed(seed);
    models.push_back(std::make_shared<models::CharGpt>(models::CharGptOptions{.layers = 1,
                                                                              .heads = 2,
                                                                              .width = value.width,
                                                                              .context = testing::kSmallContext,
                                                                              .vocabulary_size = vocabulary_size}));
  }
  return models;
}

bool equal_bits(const models::Model& a, const models::Model& b) {
  const auto others = b.parameters();
  for (size_t i = 0; i < others.size(); ++i) {
    if (!at::equal(a.parameters()[i], others[i])) {
      return false;
    }
  }
  return true;
}

// If all ranks shared a node, nothing would be rounded.
hooks::WireOptions feedback(bool stochastic, int64_t node_size = 1) {
  hooks::WireOptions options{.error_feedback = true, .node_size = node_size};
  if (stochastic) {
    options.stochastic_rounding_seed = 7;
  }
  return options;
}

// A warm-up step, and a round of four. After step 3 the first fragment is in flight.
OuterOptions streaming() {
  return OuterOptions()
      .sync_every(4)
      .optimizer(OuterKind::kNesterov)
      .fragments(2)
      .overlap_steps(1)
      .mix(0.5)
      .warmup_steps(1)
      .wire({.format = WireFormat::kInt4B32, .error_feedback = true, .node_size = 1, .link_gbit = 1, .link_us = 100});
}

Case streaming_in_groups(int64_t group_size, Precision precision, const std::string& hook) {
  const auto ddp = DdpOptions().bucket_cap_mb(0.01).first_bucket_mb(0.005).hook("post_local_sgd");
  return {.name = "outer_" + hook + "_" + std::string(to_string(precision)),
          .ddp = DdpOptions(ddp).local({.start = 1, .group_size = group_size, .hook = hook}),
          .precision = precision,
          .outer = streaming()};
}

DdpOptions small_buckets() { return DdpOptions().bucket_cap_mb(0.01).first_bucket_mb(0.005); }

// More than 2 MiB, so that the size of buckets is chosen, from measurements before the first checkpoint.
Case chosen_buckets() {
  return {"int4_feedback_chosen_buckets", DdpOptions().hook("int4").wire(feedback(true)).bucket_cap_mb(std::nullopt),
          OptimizerKind::kAdamW, 2, 224};
}

// The parts of a checkpoint besides the state of DistributedDataParallel: optimizers, gradient scalers, outer
// optimizers, counters and files. ResumeTrialsTest draws hooks and modes.
std::vector<Case> cases() {
  Case static_outer = streaming_in_groups(2, Precision::kFp32, "int8");
  static_outer.name = "static_outer";
  static_outer.ddp.static_graph(true).bucket_cap_mb(1e-5).first_bucket_mb(1e-5);
  return {
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

class ResumeTest : public ::testing::TestWithParam<std::tuple<Case, int64_t>> {};

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

std::string name_of(const ::testing::TestParamInfo<std::tuple<Case, int64_t>>& info) {
  return std::get<0>(info.param).name + "_" + std::to_string(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Cases, ResumeTest, ::testing::Combine(::testing::ValuesIn(cases()), ::testing::Values(1, 3)),
                         name_of);

// Writing checkpoints changes nothing.
TEST(Resume, CheckpointsLeaveTheTrainingAlone) {
  const Case value = {"int4", DdpOptions().bucket_cap_mb(0.01).hook("int4").wire(feedback(true))};
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
  Case value = {"sgd", DdpOptions(), OptimizerKind::kSgd};
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
  const std::vector<Case> others = {
      {"noop", small_buckets().hook("noop")},
      {"one_level", int4(feedback(false))},
      {"two_levels", int4(feedback(true, 2))},
      {"two_hops", DdpOptions().hook("int4").wire(feedback(true)), OptimizerKind::kSgd, 1, 128},
      chosen_buckets()};
  for (const Case& other : others) {
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
             entry.first.starts_with("generator.") || entry.first == "counters.window_loss" ||
             entry.first == "counters.seconds" || entry.first == "counters.window_seconds";
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
    const Case pairs = streaming_in_groups(2, precision, "allreduce");
    const Case threes = streaming_in_groups(3, precision, "allreduce");
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

TEST(Resume, RestoresTheRandomGenerator) {
  const Case value = {"none"};
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
  const Case value = {"none"};
  const TemporaryFolder folder;
  train_on(models_of(1, value, 1), {value, folder.path()});
  const auto complaint = [&](const Case& other) {
    return error_message<CorruptInputError>([&] { train_on(models_of(1, other, 1), {other, folder.path(), 3}); });
  };
  EXPECT_THAT(complaint({"wide", {}, OptimizerKind::kAdamW, 1, 32}), HasSubstr("step-00000003"));
  EXPECT_THAT(complaint({"sgd", {}, OptimizerKind::kSgd}), HasSubstr("step-00000003"));
  EXPECT_THAT(complaint({"int8", DdpOptions().hook("int8").wire({.node_size = 1})}),
              HasSubstr("the hook's state lacks"));
}

// Entries of a manifest with a correct checksum. Errors have our text, not that of the JSON library.
TEST(Resume, EntriesOfAnotherKindAreNamed) {
  const Case value = {"none"};
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
}  // namespace narrowcast::training
