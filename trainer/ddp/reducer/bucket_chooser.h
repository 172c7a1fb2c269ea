// Finds the size of buckets in the first steps of a training.
//
// In these each rank has all gradients of a dtype in one bucket, which goes when the last of them is there: the
// backward pass is measured without the exchange. Then the hook is measured without a backward pass, on buckets made
// for it, and the size is chosen for which both together end first (bucket_size.h). All ranks take the slowest rank's
// times, and so come to the same.
#pragma once

#include <optional>
#include <vector>

#include <narrowcast/ddp_options.h>
#include <narrowcast/module_state.h>
#include <narrowcast/process_group.h>
#include "trainer/ddp/reducer/bucket_size.h"

namespace narrowcast {

// Whether there is something to find: several ranks, whose gradients are on the CPU and are more than 2 MiB. Up to
// that, a first bucket of 1 MiB leaves one bucket more, whatever their size. Else the size is that of DdpOptions'
// default; gradients on GPUs are not measured so far.
bool chooses_bucket_size(const std::vector<at::Tensor>& parameters, int64_t world_size);

// The options with the size of buckets that is used until another one is chosen, if ever.
DdpOptions with_first_bucket_size(const DdpOptions& options, const std::vector<at::Tensor>& parameters,
                                  int64_t world_size);

// What is measured on one rank.
class BucketChooser {
 public:
  // `options` name the hook, and no size. Parameters are on the CPU.
  BucketChooser(const std::vector<NamedTensor>& parameters, ProcessGroupPtr group, const DdpOptions& options);

  // Around each backward pass that reduces; end_pass also where none was begun.
  void begin_pass() { times_.begin_pass(); }
  void end_pass() { times_.end_pass(); }

  // Whether a size can be chosen, and whether more passes would tell little more. The same on all ranks.
  bool can_choose() const { return times_.passes() > 0; }
  bool is_due() const;

  // The size, and the buckets that it gives.
  struct Result {
    BucketChoice choice;
    BucketIndices buckets;
  };
  // A collective, between steps. `in_use`: the hook, null for "none"; what it does not predict itself is measured with
  // another one of its kind. c10::DistBackendError if a peer fails.
  Result choose(const hooks::CommHook* in_use) const;

 private:
  BackwardPass slowest_pass() const;
  ExchangeSeconds exchange_seconds(const hooks::CommHook* in_use) const;

  const std::vector<at::Tensor> parameters_;
  const ProcessGroupPtr group_;
  const DdpOptions options_;
  GradientTimes times_;
};

}  // namespace narrowcast
