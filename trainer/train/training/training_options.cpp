#include "trainer/train/training/training_options.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ops/common/enumerator_names.h"
#include "trainer/ddp/sharding/shard_agreement.h"
#include "trainer/train/data/dataset.h"

namespace narrowcast::training {
namespace {

constexpr EnumeratorNames<OptimizerShards, 4> kOptimizerShardsNames{"shard_optimizer",
                                                                    "OptimizerShards",
                                                                    {{{OptimizerShards::kOff, "off"},
                                                                      {OptimizerShards::kNode, "node"},
                                                                      {OptimizerShards::kAll, "all"},
                                                                      {OptimizerShards::kAuto, "auto"}}}};

constexpr int64_t kLargestStep = 10000;  // to a larger number of ranks

// The nearest numbers of ranks for this batch size, and batch sizes for this number of ranks.
std::string possible_sizes(const TrainingOptions& options, int64_t world_size) {
  const auto fits = [&](int64_t ranks) { return options.batch_size % (ranks * options.accumulation_steps) == 0; };
  const int64_t most = divided_by_ranks(options);
  const int64_t fewer = possible_ranks(options, world_size - 1);
  int64_t more = world_size + 1;
  const int64_t last = std::min(most, world_size + kLargestStep);
  while (more <= last && !fits(more)) ++more;
  std::vector<std::string> ranks;
  if (fewer > 0) ranks.push_back(std::to_string(fewer));
  if (more <= last) ranks.push_back(std::to_string(more));
  const int64_t unit = world_size * options.accumulation_steps;
  const int64_t below = options.batch_size / unit * unit;
  const std::string batches = below > 0 ? c10::str(below, " or ", below + unit) : std::to_string(unit);
  return c10::str("; possible: ", ranks.empty() ? "" : c10::str(c10::Join(" or ", ranks), " ranks, or "), "batch_size ",
                  batches);
}

data::BatchPlanOptions parts_of_batch(const TrainingOptions& options, int64_t world_size) {
  return {.global_batch = options.batch_size,
          .world_size = world_size,
          .accumulation_steps = options.accumulation_steps,
          .shares = options.shares.samples};
}

}  // namespace

OptimizerShards parse_optimizer_shards(const std::string& name) { return kOptimizerShardsNames.parse_known(name); }

std::string to_string(OptimizerShards shards) { return std::string(kOptimizerShardsNames.name_of(shards)); }

int64_t possible_ranks(const TrainingOptions& options, int64_t most) {
  if (options.batch_size < 1 || options.accumulation_steps < 1) {
    return 0;
  }
  int64_t ranks = std::min(most, divided_by_ranks(options));
  while (ranks > 0 && options.batch_size % (ranks * options.accumulation_steps) != 0) --ranks;
  return std::max<int64_t>(0, ranks);
}

data::BatchPlan batch_plan(const TrainingOptions& options, int64_t world_size) {
  return data::BatchPlan(parts_of_batch(options, world_size));
}

std::pair<int64_t, int64_t> sizes_of_passes(const TrainingOptions& options, int64_t world_size) {
  const int64_t passes = options.accumulation_steps;
  if (options.shares.kind == data::Shares::Kind::kAuto) return {1, (options.batch_size - 1) / passes - world_size + 2};
  const std::vector<int64_t> shares = batch_plan(options, world_size).options().shares;
  const auto [least, most] = std::ranges::minmax(shares);
  return {least / passes, (most - 1) / passes + 1};
}

void check_auto_shares(const TrainingOptions& options, int64_t world_size) {
  if (options.shares.kind != data::Shares::Kind::kAuto) return;
  TORCH_CHECK_VALUE(world_size > 1, "shares: auto needs several ranks, but there is one");
  TORCH_CHECK_VALUE(options.batch_size > world_size * options.accumulation_steps,
                    "shares: auto has no effect, because ", world_size,
                    " ranks have one sample each in a pass: the batch has ", options.batch_size, " samples in ",
                    options.accumulation_steps, " passes");
}

void check_training_options(const TrainingOptions& options, int64_t world_size) {
  TORCH_CHECK_VALUE(options.batch_size >= 1, "batch_size: must be at least 1, but is ", options.batch_size);
  TORCH_CHECK_VALUE(options.accumulation_steps >= 1, "accumulation_steps: must be at least 1, but is ",
                    options.accumulation_steps);
  TORCH_CHECK_VALUE(!options.parameter_format.has_value() || options.optimizer_shards == OptimizerShards::kAll,
                    "parameter_format: ", *options.parameter_format, " has no effect without shard_optimizer all");
  sharding::check_parameter_format(options.parameter_format);
  TORCH_CHECK_VALUE(options.shard_copies == 1 || options.optimizer_shards == OptimizerShards::kNode ||
                        options.optimizer_shards == OptimizerShards::kAll,
                    "shard_copies: ", options.shard_copies, " needs shard_optimizer node or all, but it is ",
                    to_string(options.optimizer_shards));
  TORCH_CHECK_VALUE(options.early_stop == 0 || (options.eval_every > 0 && options.eval_batches > 0),
                    "early_stop: needs eval_every, the number of steps between evaluations");
  const data::BatchPlanOptions parts = parts_of_batch(options, world_size);
  TORCH_CHECK_VALUE(!options.shares_with_batch_norm || !options.shares.are_equal(),
                    "shares_with_batch_norm: has no effect with equal shares");
  if (parts.shares.empty()) {
    TORCH_CHECK_VALUE(data::divides_evenly(parts), "batch_size: must be divisible by ranks * accumulation_steps (",
                      world_size, " * ", options.accumulation_steps, "), but is ", options.batch_size,
                      possible_sizes(options, world_size));
  } else {
    data::check_given_shares(parts);
  }
  TORCH_CHECK_VALUE(
      options.skip_nonfinite_steps || options.precision != Precision::kFp16,
      "skip_nonfinite_steps: must be true with precision fp16, which adapts its loss scale by skipped steps");
  TORCH_CHECK_VALUE(!options.adamw_learning_rate || options.optimizer.kind == OptimizerKind::kMuon,
                    "adamw_learning_rate: has no effect with optimizer ", to_string(options.optimizer.kind));
  LearningRateSchedule(options.learning_rate, options.steps);
  check_optimizer_options(options.optimizer);
}

}  // namespace narrowcast::training
