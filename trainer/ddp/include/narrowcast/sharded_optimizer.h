// Data-parallel training in which the ranks of a node share the optimizer's work and memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/export.h>
#include <narrowcast/process_group.h>

namespace narrowcast::sharding {
class ShardedParts;
}

namespace NARROWCAST_EXPORT narrowcast {

// Set with chained calls: ShardOptions().whole_parameters(true). All ranks must pass the same.
struct ShardOptions {
  // Whether a parameter is stepped by one rank as a whole. Optimizers that compute with the parameter's shape need it,
  // for instance with norms of matrices. Ranks then get equal numbers of elements only as far as parameters allow.
  TORCH_ARG(bool, whole_parameters) = false;

  // As WireOptions::node_size: every so many consecutive ranks are a node. By default the ranks find their nodes.
  TORCH_ARG(std::optional<int64_t>, node_size) = std::nullopt;
};

// Shards the state of an optimizer over the ranks of each node: ZeRO's first stage (arXiv 1910.02054), within nodes.
//
//   torch::optim::AdamW adamw(model->parameters(), 3e-4);
//   ShardedOptimizer optimizer(adamw, group);
//   ddp.backward(loss_of(ddp.forward(inputs), targets));
//   optimizer.step();  // steps this rank's shard of the parameters, and copies the others' from the node's memory
//   ddp.zero_grad();
//
// The parameters of the wrapped optimizer, in the order of its groups, are cut into as many shards as the node has
// ranks. A rank steps its shard only, and holds the state of that shard only: with G ranks per node, AdamW needs 8 / G
// bytes per parameter instead of 8. Then the node's ranks exchange the new parameters in their memory. Nothing is sent
// between nodes, because every node holds all shards.
//
// The parameters get the bits of a training without shards, if the optimizer's arithmetic does not depend on an
// element's place. Shards begin at multiples of 64 elements of a parameter, so that this holds for LibTorch's vector
// loops. Gradients must be equal on the ranks of a node, as they are after a DistributedDataParallel has averaged them.
//
// The wrapped optimizer's groups keep their options, so its learning rates are set as before. From then on they hold
// parts of the parameters, 1-D tensors in the parameters' memory, and no gradients between steps: its own step() and
// zero_grad() do nothing useful any more, also after this object's end. A parameter that requires a gradient only later
// is never stepped.
//
// All ranks make the same calls in the same order, from one thread each.
class ShardedOptimizer {
 public:
  // A collective. `inner`, which outlives this, has all parameters, float32, on the CPU and equal on all ranks, and
  // holds no state. Its options are the same on all ranks. Parameters that require no gradient are not changed. Throws
  // c10::DistBackendError if a peer fails, c10::ValueError for a null group, and c10::ValueError on all ranks
  //   - for a group of one rank, if no two ranks share a node, or if the ranks of a node cannot share memory;
  //   - for LBFGS, and for another optimizer than Adam, AdamW, RMSprop and SGD without whole_parameters. A class that
  //   is
  //     derived from one of these counts as it, so its steps must be elementwise as well;
  //   - for an optimizer that has taken a step, or that makes its state in its constructor, as Adagrad does;
  //   - for parameters that are not float32, not on the CPU, or have holes in memory;
  //   - if ShardOptions, the kind of optimizer, or the sizes, strides or groups of parameters differ between ranks.
  ShardedOptimizer(torch::optim::Optimizer& inner, ProcessGroupPtr group, const ShardOptions& options = {});
  ~ShardedOptimizer();
  ShardedOptimizer(const ShardedOptimizer&) = delete;
  ShardedOptimizer& operator=(const ShardedOptimizer&) = delete;

  // A collective: a step of the wrapped optimizer for this rank's shard, then the exchange in the node. Parameters
  // whose gradient is undefined are skipped, as by LibTorch's optimizers: on all ranks or on none. Throws
  // c10::DistBackendError if a rank of the node fails; parameters are then partly those of the new step. Throws what
  // the optimizer's step throws, and c10::ValueError for a sparse gradient; the other ranks of the node then fail as
  // well.
  void step();

  // Makes the gradients of all parameters undefined.
  void zero_grad();

  // A collective: the optimizer's state of whole parameters, on rank 0 of the group; empty on all others. The names are
  // those of LibTorch's state, after a parameter's first name in `parameters`:
  //   NAME.step: int64, a scalar; not of SGD
  //   NAME.exp_avg, NAME.exp_avg_sq, NAME.max_exp_avg_sq (Adam, AdamW), NAME.square_avg, NAME.grad_avg (RMSprop),
  //   NAME.momentum_buffer (RMSprop, SGD): float32, of the parameter's shape; those that the options need
  // Throws c10::DistBackendError if a peer fails, and c10::ValueError for a parameter that `parameters` lacks, and for
  // another optimizer than Adam, AdamW, RMSprop and SGD.
  hooks::HookState state(const std::vector<hooks::NamedParameter>& parameters);

  // Takes this rank's shard of such a state, which every rank has as a whole, before the first step. The world that
  // saved it may have been any, also one without shards. Throws c10::ValueError as state does, and CorruptInputError
  // naming a tensor that is missing, unknown, or of another shape or dtype than its parameter, before anything is
  // changed.
  void load_state(const hooks::HookState& saved, const std::vector<hooks::NamedParameter>& parameters);

  // Elements of all parameters, and of this rank's shard.
  int64_t elements() const;
  int64_t own_elements() const;
  // Number of shards of this rank's node.
  int64_t shards() const;

 private:
  std::unique_ptr<sharding::ShardedParts> parts_;
};

}  // namespace narrowcast
