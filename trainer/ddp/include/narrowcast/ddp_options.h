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

  // All options of the hook except its process group. A hook refuses options that only other hooks take. The functions
  // after this one set and return parts of it.
  TORCH_ARG(hooks::HookOptions, hook_options) = {};

  // A bucket is sent when its gradients reach this many MiB (2^20 bytes). Without a value (std::nullopt) the first
  // steps choose one, see BucketChoice in gradient_reducer.h. They measure the backward pass and the hook, so the
  // choice, and with it the bits of the means, may differ from run to run. There is no choice, and the cap is 25, with
  // one rank, with at most 2 MiB of gradients, and with gradients on GPUs, which are not measured so far.
  TORCH_ARG(std::optional<double>, bucket_cap_mb) = 25;

  // The cap of the first bucket, in MiB: it is small, so that sending starts early. Without a value it is 1 MiB, or
  // bucket_cap_mb if that is smaller. If a smaller bucket_cap_mb is chosen, the first bucket has that cap as well.
  TORCH_ARG(std::optional<double>, first_bucket_mb) = std::nullopt;

  // Set this if some parameters get no gradient in some steps. It costs a walk over the graph per forward, a small
  // all-reduce per backward and a copy of the outputs.
  TORCH_ARG(bool, find_unused_parameters) = false;

  // Gradients are views of the buckets, which saves one copy in memory. Reset them with
  // DistributedDataParallel::zero_grad; they cannot be zeroed in place.
  TORCH_ARG(bool, gradient_as_bucket_view) = false;

  // Every step uses the same parameters the same number of times. Unused parameters are found once, in the first
  // backward pass that reduces. Parameters may be used several times in re-entrant backward passes. Each backward pass
  // needs exactly one forward. Passes inside no_sync may come before that pass and between others.
  TORCH_ARG(bool, static_graph) = false;

  // Rank 0's buffers (e.g. running means) are sent to all ranks at the start of each forward that follows a
  // synchronised one, as long as the hook keeps replicas equal.
  TORCH_ARG(bool, broadcast_buffers) = true;

  // Rank 0's parameters and buffers are sent to all ranks at construction.
  TORCH_ARG(bool, init_sync) = true;

 public:
  // Options of wire-format hooks: DdpOptions().hook("quantized_allreduce").wire({.error_feedback = true}).
  DdpOptions& wire(hooks::WireOptions wire);
  const hooks::WireOptions& wire() const { return hook_options_.wire; }  // Default: WireOptions().

  // Number of elements that share a scale with quantize_per_channel (bucket_size of PyTorch's hook): >= 1, by default
  // hooks::kDefaultChannelSize.
  DdpOptions& channel_size(std::optional<int64_t> channel_size);
  const std::optional<int64_t>& channel_size() const { return hook_options_.channel_size; }  // Default: empty.

  // Options of post_local_sgd: DdpOptions().hook("post_local_sgd").local({.start = 100}).
  DdpOptions& local(hooks::LocalOptions local);
  const hooks::LocalOptions& local() const { return hook_options_.local; }  // Default: LocalOptions().

  // Options of the power_sgd hooks: DdpOptions().hook("power_sgd").power_sgd({.rank = 4, .start = 100}).
  DdpOptions& power_sgd(hooks::PowerSgdOptions power_sgd);
  const hooks::PowerSgdOptions& power_sgd() const { return hook_options_.power_sgd; }  // Default: PowerSgdOptions().

  // Throws c10::ValueError naming an option that is out of range or unknown, or that another option makes ineffective.
  void validate() const;

  // The same options for another hook, without the options that only hook() takes.
  DdpOptions with_hook(const std::string& name) const;

  // The options from which the hook is made in that process group.
  hooks::HookOptions hook_options(c10::intrusive_ptr<c10d::ProcessGroup> process_group) const;

  // bucket_cap_mb in bytes, at least 1. Without a value it is 2^40 until one is chosen: all gradients are in one
  // bucket.
  int64_t bucket_bytes_cap() const;
  // The cap of the first bucket in bytes, at least 1, also where first_bucket_mb has no value. It is 2^40 if
  // bucket_cap_mb has no value.
  int64_t first_bucket_bytes_cap() const;
};

}  // namespace narrowcast
