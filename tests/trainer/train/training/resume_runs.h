// Trainings that write checkpoints and resume from them.
#pragma once

#include <ATen/Context.h>
#include <ATen/ops/equal.h>

#include <csignal>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include <narrowcast/char_gpt.h>
#include <narrowcast/ddp_options.h>
#include <narrowcast/hook_options.h>
#include <narrowcast/outer_options.h>
#include "tests/support/ranks.h"
#include "tests/trainer/train/training/small_text.h"
#include "trainer/train/checkpoint/checkpoint_folder.h"
#include "trainer/train/training/training_loop.h"

namespace narrowcast::training::resuming {

using Models = std::vector<std::shared_ptr<models::Model>>;  // By rank.

inline constexpr int64_t kSteps = 6;

// The options for averaging and applying gradients.
struct ResumeCase {
  std::string name;
  DdpOptions ddp = {};
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  int64_t accumulation_steps = 1;
  int64_t width = 16;
  Precision precision = Precision::kFp32;
  std::optional<OuterOptions> outer = std::nullopt;
  OptimizerShards shards = OptimizerShards::kOff;  // With several ranks.
  std::optional<WireFormat> parameter_format = std::nullopt;
  bool shares_parameters = false;
  data::Shares shares = {};
};

inline void PrintTo(const ResumeCase& value, std::ostream* out) { *out << value.name; }

inline TrainingOptions options_of(const ResumeCase& value) {
  TrainingOptions options;
  options.steps = kSteps;
  options.batch_size = 12;
  options.accumulation_steps = value.accumulation_steps;
  options.precision = value.precision;
  options.optimizer.kind = value.optimizer;
  options.optimizer.momentum = usual_momentum(value.optimizer);
  options.optimizer_shards = value.shards;
  options.parameter_format = value.parameter_format;
  options.share_parameters = value.shares_parameters;
  options.shares = value.shares;
  options.eval_batches = 1;
  options.log_every = 4;  // So that checkpoints are between reports.
  return options;
}

// Trains on `models.size()` ranks; writes checkpoints of all steps to `folder`, or resumes from one of them, and then
// writes to `next_folder` if there is one.
struct ResumeRun {
  const ResumeCase& value;
  std::string folder;
  std::optional<int64_t> from = std::nullopt;
  std::string next_folder = {};
  // Asks the last rank to stop, from its second check on. There is no other checkpoint then.
  bool is_preempted = false;
};

inline std::vector<TrainingResult> train_on(const Models& models, const ResumeRun& run) {
  const TrainingOptions options = options_of(run.value);
  const data::TextDataset dataset = testing::small_text();
  std::vector<TrainingResult> results(models.size());
  testing::run_ranks(static_cast<int64_t>(models.size()), [&](int64_t rank, const ProcessGroupPtr& group) {
    const bool writes = !run.from || !run.next_folder.empty();
    checkpoint::CheckpointWriter writer(group, {.folder = run.from ? run.next_folder : run.folder, .keep = 0}, {});
    std::optional<checkpoint::ReadCheckpoint> read;
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
                           .shards = models.size() > 1 ? run.value.shards : OptimizerShards::kOff,
                           .units_per_sample = testing::kSmallContext,
                           .observer = nullptr,
                           .checkpoints = checkpoints},
                          options);
  });
  return results;
}

inline Models models_of(int64_t world_size, const ResumeCase& value, uint64_t seed) {
  Models models;
  const int64_t vocabulary_size = testing::small_text().corpus().vocabulary().size();
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

inline bool equal_bits(const models::Model& a, const models::Model& b) {
  const auto others = b.parameters();
  for (size_t i = 0; i < others.size(); ++i) {
    if (!at::equal(a.parameters()[i], others[i])) {
      return false;
    }
  }
  return true;
}

// If all ranks shared a node, nothing would be rounded.
inline hooks::WireOptions feedback(bool stochastic, int64_t node_size = 1) {
  hooks::WireOptions options{.error_feedback = true, .node_size = node_size};
  if (stochastic) {
    options.stochastic_rounding_seed = 7;
  }
  return options;
}

// A warm-up step, and a round of four. After step 3 the first fragment is in flight.
inline OuterOptions streaming() {
  return OuterOptions()
      .sync_every(4)
      .optimizer(OuterKind::kNesterov)
      .fragments(2)
      .overlap_steps(1)
      .mix(0.5)
      .warmup_steps(1)
      .wire({.format = WireFormat::kInt4B32, .error_feedback = true, .node_size = 1, .link_gbit = 1, .link_us = 100});
}

inline ResumeCase streaming_in_groups(int64_t group_size, Precision precision, const std::string& hook) {
  const auto ddp = DdpOptions().bucket_cap_mb(0.01).first_bucket_mb(0.005).hook("post_local_sgd");
  return {.name = "outer_" + hook + "_" + std::string(to_string(precision)),
          .ddp = DdpOptions(ddp).local({.start = 1, .group_size = group_size, .hook = hook}),
          .precision = precision,
          .outer = streaming()};
}

inline DdpOptions small_buckets() { return DdpOptions().bucket_cap_mb(0.01).first_bucket_mb(0.005); }

// More than 2 MiB, so that the size of buckets is chosen, from measurements before the first checkpoint.
inline ResumeCase chosen_buckets() {
  return {"int4_feedback_chosen_buckets", DdpOptions().hook("int4").wire(feedback(true)).bucket_cap_mb(std::nullopt),
          OptimizerKind::kAdamW, 2, 224};
}

}  // namespace narrowcast::training::resuming
