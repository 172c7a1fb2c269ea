// Options of DistributedDataParallel, under PyTorch's names.
#pragma once

#include <torch/arg.h>

#include <cstdint>
#include <optional>
#include <string>

#include <narrowcast/export.h>
#include <narrowcast/hook_options.h>

namespace narrowcast {

// Set with chained calls: DdpOptions().hook("int8").bucket_cap_mb(50). All ranks
// must pass the same; DistributedDataParallel checks that.
struct NARROWCAST_EXPORT DdpOptions {
  // Communication hook by its name, one of comm_hook_names(), e.g. "int8"; "none" leaves averaging to the Reducer
  // itself.
  TORCH_ARG(std::string, hook) = "none";

  // What the hook is made from, but for its process group. A hook refuses what is given for others. Kept as a whole;
  // the functions after this one set and return its parts.
  TORCH_ARG(hooks::HookOptions, hook_options) = {};

  // A bucket is sent when its gradients reach this many MiB (2^20 bytes). Without a value (std::nullopt) the first
  // steps choose one: they measure the backward pass and the hook, so the choice, and with it the bits of the means,
  // may differ from run to run. See BucketChoice in gradient_reducer.h. It is 25 where there is nothing to choose: with
  // one rank, at most 2 MiB of gradients, or gradients on GPUs, which are not measured so far.
  TORCH_ARG(std::optional<double>, bucket_cap_mb) = 25;

  // The cap of the first bucket, in MiB: it is small, so that sending starts early.
  // Without a value it is 1 MiB, or bucket_cap_mb if that is smaller. Where bucket_cap_mb is chosen, a smaller choice
  // holds for the first bucket, too.
  TORCH_ARG(std::optional<double>, first_bucket_mb) = std::nullopt;

  // Some parameters get no gradient in some steps. Costs a walk over the graph per
  // forward, a small all-reduce per backward and a copy of the outputs.
  TORCH_ARG(bool, find_unused_parameters) = false;

  // Gradients are views of the buckets: one copy less in memory. Reset them with
  // DistributedDataParallel::zero_grad; they cannot be zeroed in place.
  TORCH_ARG(bool, gradient_as_bucket_view) = false;

  // Every step uses the same parameters the same number of times. Finds unused parameters once, in the first backward
  // pass that reduces, and allows parameters that are used several times in re-entrant backward passes. One forward per
  // backward. Passes inside no_sync may come before that pass and between others.
  TORCH_ARG(bool, static_graph) = false;

  // Rank 0's buffers (e.g. running means) go to all ranks at the start of each
  // forward that follows a synchronised one, as long as the hook keeps replicas equal.
  TORCH_ARG(bool, broadcast_buffers) = true;

  // Rank 0's parameters and buffers go to all ranks at construction.
  TORCH_ARG(bool, init_sync) = true;

 public:
  // How a hook of wire formats sends: DdpOptions().hook("quantized_allreduce").wire({.error_feedback = true}).
  DdpOptions& wire(hooks::WireOptions wire);
  const hooks::WireOptions& wire() const { return hook_options_.wire; }

  // How many elements share a scale with quantize_per_channel, the bucket_size of PyTorch's hook: >= 1,
  // hooks::kDefaultChannelSize without a value.
  DdpOptions& channel_size(std::optional<int64_t> channel_size);
  const std::optional<int64_t>& channel_size() const { return hook_options_.channel_size; }

  // How post_local_sgd averages: DdpOptions().hook("post_local_sgd").local({.start = 100}).
  DdpOptions& local(hooks::LocalOptions local);
  const hooks::LocalOptions& local() const { return hook_options_.local; }

  // What the power_sgd hooks do: DdpOptions().hook("power_sgd").power_sgd({.rank = 4, .start = 100}).
  DdpOptions& power_sgd(hooks::PowerSgdOptions power_sgd);
  const hooks::PowerSgdOptions& power_sgd() const { return hook_options_.power_sgd; }

  // Throws c10::ValueError naming an option that is out of range or unknown, or
  // that another one makes void.
  void validate() const;

  // The same options for another hook, without those that were meant for hook() alone.
  DdpOptions with_hook(const std::string& name) const;

  // What its hook is made from in that process group.
  hooks::HookOptions hook_options(c10::intrusive_ptr<c10d::ProcessGroup> process_group) const;

  // bucket_cap_mb in bytes, at least 1; without a value, until one is chosen, 2^40: all gradients are in one bucket.
  int64_t bucket_bytes_cap() const;
  // The cap of the first bucket in bytes, at least 1, also where first_bucket_mb has no value. Without a value for
  // bucket_cap_mb it is 2^40, too.
  int64_t first_bucket_bytes_cap() const;
};

}  // namespace narrowcast
