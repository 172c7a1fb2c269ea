// The options of a training.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <narrowcast/learning_rate.h>
#include <narrowcast/wire_format.h>
#include "trainer/train/data/shares.h"
#include "trainer/train/optimization/optimizer.h"
#include "trainer/train/optimization/precision.h"

namespace narrowcast::training {

// The ranks that share the optimizer's work and memory (narrowcast/sharded_optimizer.h): none, each node's, or all.
enum class OptimizerShards { kOff, kNode, kAll, kAuto };

// "off", "node", "all" or "auto"; anything else throws c10::ValueError.
OptimizerShards parse_optimizer_shards(const std::string& name);

// The value's name.
std::string to_string(OptimizerShards shards);

// The numbers of a training; what it works with is TrainingSetup (training_loop.h).
struct TrainingOptions {
  int64_t steps = 600;             // optimizer steps, >= 1
  int64_t batch_size = 32;         // samples per optimizer step over all ranks; see `shares`
  int64_t accumulation_steps = 1;  // backward passes per optimizer step, >= 1
  data::Shares shares = {};        // samples of each rank; unless kGiven, world * accumulation_steps divides batch_size
  bool shares_with_batch_norm = false;  // allows unequal shares for a model with batch norm
  OptimizerOptions optimizer = {};
  LearningRateOptions learning_rate = {};
  // With Muon: the peak rate of the parameters that AdamW steps, on the same schedule, > 0. Default: the peak above.
  std::optional<double> adamw_learning_rate = std::nullopt;
  OptimizerShards optimizer_shards = OptimizerShards::kOff;   // except with kAll the result has the same bits
  bool share_parameters = false;                              // with kNode; the result has the same bits
  std::optional<WireFormat> parameter_format = std::nullopt;  // how kAll sends parameters; empty: ShardOptions' default
  int64_t shard_copies = 1;                                   // ShardOptions::copies, of kNode and kAll
  double clip_grad_norm = 1;                                  // largest 2-norm of the averaged gradients; 0: no limit
  bool skip_nonfinite_steps = true;  // leave the model as it was where a gradient is Inf or NaN; always with kFp16
  int64_t max_skipped_steps = 100;   // so many of them in a row end the training, at the next report; >= 1
  Precision precision = Precision::kFp32;
  int64_t eval_every = 0;     // steps between evaluations; 0: only after the last step
  int64_t eval_batches = 16;  // held-out samples in one evaluation, in batches of batch_size; 0: no evaluation
  int64_t early_stop = 0;     // evaluations in a row without a lower loss that end the training; 0: none do
  int64_t log_every = 10;     // steps between reports, >= 1
  // Steps between comparisons of all ranks' replicas, where the hook keeps them equal; 0: only before checkpoints.
  int64_t check_replicas_every = 500;
  uint64_t seed = 0;  // of the order of the data
};

// Throws c10::ValueError naming the flag and the value if options that are in their ranges (options/option_table.h) do
// not go together, or training on `world_size` ranks could not start.
void check_training_options(const TrainingOptions& options, int64_t world_size);

// How these ranks share a batch, as long as no shares were measured. Throws as check_training_options.
data::BatchPlan batch_plan(const TrainingOptions& options, int64_t world_size);

// The fewest and the most samples in one forward pass of any rank, whatever shares kAuto decides. Throws as batch_plan.
std::pair<int64_t, int64_t> sizes_of_passes(const TrainingOptions& options, int64_t world_size);

// Throws c10::ValueError if kAuto could not change the shares: with one rank, or one sample per rank and pass.
void check_auto_shares(const TrainingOptions& options, int64_t world_size);

// The number that a possible number of ranks divides, for options that check_training_options accepts.
inline int64_t divided_by_ranks(const TrainingOptions& options) {
  return options.batch_size / options.accumulation_steps;
}

// The largest possible number of ranks up to `most` for this batch. 0: there is none.
int64_t possible_ranks(const TrainingOptions& options, int64_t most);

}  // namespace narrowcast::training
