// A model's gradients, alone and through DistributedDataParallel with a hook.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/consensus.h>
#include <narrowcast/ddp_options.h>
#include <narrowcast/model.h>

namespace narrowcast::verification {

// Makes the hook of a name; nullptr for "none".
using HookFactory = std::function<std::unique_ptr<hooks::CommHook>(const std::string& name)>;

// One forward and backward pass to be run under every hook.
struct GradientProblem {
  std::shared_ptr<models::Model> model;  // the same parameters on all ranks
  models::Batch batch;                   // this rank's own
  ProcessGroupPtr group;
  DdpOptions ddp = {};  // what is meant for its hook is used with the hook of that name only
};

// The gradients of this rank's batch without other ranks, a copy by parameter; zeros where a parameter is unused.
std::vector<at::Tensor> local_gradients(const GradientProblem& problem);

// What a rank ends one backward pass with, by parameter.
struct PassResult {
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> bounds;  // on the difference to the mean without a hook; see PassBounds::of_pass
};

struct HookRun {
  std::vector<PassResult> passes;  // two: in the first layout of buckets, and in the one the Reducer rebuilds
  int64_t payload_bytes_sent = 0;  // by this rank in a pass
  double seconds = 0;              // of a pass: forward, backward and exchange
};

// A collective: passes with the hook that `make_hook` makes. Parameters stay as they are. Throws
// c10::DistBackendError if a peer failed.
HookRun run_hook(const GradientProblem& problem, const std::string& hook, const HookFactory& make_hook);

}  // namespace narrowcast::verification
