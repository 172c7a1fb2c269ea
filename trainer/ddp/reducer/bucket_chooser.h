// Finds the size of buckets in the first steps of a training.
//
// In these steps buckets are sent when the last gradient is ready: the backward pass is measured without communication.
// Then the hook is measured without a backward pass, on test buckets, and the size is chosen with which both together
// end first (bucket_size.h). All ranks use the slowest rank's times, and so choose the same size.
#pragma once

#include <optional>
#include <vector>

#include <narrowcast/ddp_options.h>
#include <narrowcast/module_state.h>
#include <narrowcast/process_group.h>
#include "trainer/ddp/reducer/backward_watch.h"
#include "trainer/ddp/reducer/bucket_size.h"

namespace narrowcast {

// Whether there is a size to find: `options` leave it open, there are several ranks, and their gradients are on the CPU
// and more than 2 MiB. Up to 2 MiB, a first bucket of 1 MiB leaves one other bucket for any size. If nothing is to be
// found, the size is the default of DdpOptions; gradients on GPUs are not measured so far.
bool chooses_bucket_size(const DdpOptions& options, const std::vector<at::Tensor>& parameters, int64_t world_size);

// The options with the size of buckets that is used until another one is chosen, if one is chosen at all:
// kMeasuredBucketMb with a hook. Without a hook the size stays open, which gives one bucket per dtype, because the
// Reducer would average smaller ones during the backward pass.
DdpOptions with_first_bucket_size(const DdpOptions& options, const std::vector<at::Tensor>& parameters,
                                  int64_t world_size);

// Measures one rank and chooses the size with all ranks.
class BucketChooser {
 public:
  // `options` has a hook, and no size of buckets. Parameters are on the CPU.
  BucketChooser(const std::vector<NamedTensor>& parameters, ProcessGroupPtr group, const DdpOptions& options);

  // Called around each backward pass that reduces; end_pass also if no pass was begun.
  void begin_pass() { times_.begin_pass(); }
  void end_pass() { times_.end_pass(); }

  // Whether a size can be chosen, and whether more passes would hardly improve the measurement. The same on all ranks.
  bool can_choose() const { return times_.passes() > 0; }
  bool is_due() const;

  // The chosen size and its buckets.
  struct Result {
    BucketChoice choice;
    BucketIndices buckets;
  };
  // A collective, between steps. `in_use` is the hook, null for "none". Times that it does not predict itself are
  // measured with another hook of the same kind. `shards`: how the hook averages shards, if it does; sizes are then at
  // most kMostMbOfShards. Throws c10::DistBackendError if a peer fails.
  Result choose(const hooks::CommHook* in_use, std::optional<hooks::ShardRounding> shards = std::nullopt) const;

 private:
  BackwardPass slowest_pass() const;
  ExchangeSeconds exchange_seconds(const hooks::CommHook* in_use, std::optional<hooks::ShardRounding> shards) const;

  const std::vector<at::Tensor> parameters_;
  const ProcessGroupPtr group_;
  const DdpOptions options_;
  GradientTimes times_;
};

}  // namespace narrowcast
