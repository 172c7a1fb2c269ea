// Data-parallel training in which ranks share the optimizer's work and memory.
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
#include <narrowcast/gradient_reducer.h>
#include <narrowcast/process_group.h>
#include <narrowcast/wire_format.h>

namespace narrowcast::sharding {
class ShardedParts;
}

namespace NARROWCAST_EXPORT narrowcast {

// How parameters are sent over all ranks, unless ShardOptions say otherwise.
inline constexpr WireFormat kDefaultParameterFormat = WireFormat::kInt8B128;

// Set with chained calls: ShardOptions().whole_parameters(true). All ranks must pass the same.
struct ShardOptions {
  // Whether a parameter is stepped by one rank as a whole. Optimizers that compute with the parameter's shape need it,
  // for instance with norms of matrices. Ranks then get equal numbers of elements only as far as parameters allow.
  TORCH_ARG(bool, whole_parameters) = false;

  // Within nodes only. As WireOptions::node_size: every so many consecutive ranks are a node. By default the ranks find
  // their nodes.
  TORCH_ARG(std::optional<int64_t>, node_size) = std::nullopt;

  // Within nodes only. Whether the ranks of a node share the parameters themselves, in memory that all of them map:
  // with G ranks per node, they need 4 / G bytes per parameter instead of 4, and a step copies none. Tensors stay the
  // same objects, with other addresses. A parameter that requires a gradient must be alone in its storage. Rules:
  //   - What a rank writes into a parameter, all ranks of its node see. So each rank of a node must write the same
  //     values between the same two steps, as it does when it loads a checkpoint, and then meet the others before it
  //     reads. An all-reduce or a DistributedDataParallel's constructor is such a meeting.
  //   - Parameters must be neither moved nor resized, as by Module::to.
  //   - OuterOptimizer, HierarchicalAverager, ElasticGroup, and a ShardedOptimizer without this option refuse them.
  // Parameters stay usable, and shared, after the end of the ShardedOptimizer. Only another one may step them then.
  TORCH_ARG(bool, share_parameters) = false;

  // Over all ranks only: how parameters are sent, by default as differences in kDefaultParameterFormat.
  TORCH_ARG(std::optional<WireFormat>, parameter_format) = std::nullopt;

  // 1 or 2: on how many nodes each shard is. Within nodes, each node has all shards, so with 2 there must be two nodes.
  // Over all ranks, with 2 a rank on another node holds the same masters and state as the owner of a shard, bit for
  // bit: the owner sends it the average in parameter_format, and both step with what is decoded. So with fp32 the bits
  // do not change. Nodes are machines then, whatever the node_size. A rank needs twice the memory for masters and state
  // if nodes have equal numbers of ranks, else perhaps more. With fp16, averages would overflow: only one copy.
  TORCH_ARG(int64_t, copies) = 1;
};

// Shards the state of an optimizer over ranks: ZeRO's first stage (arXiv 1910.02054).
//
//   torch::optim::AdamW adamw(model->parameters(), 3e-4);
//   ShardedOptimizer optimizer(adamw, group);          // over the ranks of each node
//   ShardedOptimizer optimizer(adamw, ddp.reducer());  // or over all ranks
//   ddp.backward(loss_of(ddp.forward(inputs), targets));
//   optimizer.step();  // steps this rank's shard of the parameters, and gets the others'
//   optimizer.zero_grad();
//
// The parameters of the wrapped optimizer are cut into shards. A rank steps its shard only, and holds the state of that
// shard only. Then the ranks exchange the new parameters.
//
// Within nodes, every node holds all shards, so that with G ranks per node AdamW needs 8 / G bytes per parameter
// instead of 8. Ranks exchange parameters in their node's memory, and nothing is sent between nodes. Gradients must be
// equal on the ranks of a node, as they are after a DistributedDataParallel has averaged them.
//
// Over all W ranks, the shards together exist once, or twice with ShardOptions::copies. After a backward pass only the
// gradients of a rank's own shard are averages; others are undefined. So call zero_grad() before the next backward(),
// and accumulate in no_sync(). Hooks in a wire format (CommHook::average_shards) leave out their second hop, and the
// parameters take its place. Other hooks send all of their bytes.
//   - As differences: the owner of a shard keeps its parameters in float32, the masters. Each step it sends the
//     difference between masters and parameters in parameter_format, and all ranks, the owner too, add what they
//     decode. Replicas stay equal bit for bit. The rounding errors of a step are part of the next difference, so that
//     they do not add up: EF21-P (arXiv 2209.15218) and the weight differences of SDP4Bit (arXiv 2410.15526). AdamW
//     needs 12 / W bytes per parameter.
//   - In fp32: the parameters themselves are sent, without masters: 8 / W bytes. Parameters get the bits of a training
//     without shards, with hooks in all formats but the variable ones.
//
// Bits are those of a training without shards only if the optimizer's arithmetic does not depend on an element's place.
// Shards begin at multiples of 64 elements of a parameter (within nodes) or of a bucket (over all ranks).
//
// The wrapped optimizer's groups keep their options, so its learning rates are set as before. From then on they hold
// parts of the parameters or masters, 1-D tensors, and no gradients between steps: its own step() and zero_grad() do
// nothing useful any more, also after this object's end. A parameter that requires a gradient only later is never
// stepped.
//
// All ranks make the same calls in the same order, from one thread each.
class ShardedOptimizer {
 public:
  // Within nodes. A collective. `inner`, which outlives this, has all parameters, float32, on the CPU and equal on all
  // ranks, and holds no state. Its options are the same on all ranks. Parameters that require no gradient are not
  // changed. Throws c10::DistBackendError if a peer fails, c10::ValueError for a null group, and c10::ValueError on all
  // ranks
  //   - for a group of one rank, if no two ranks share a node, or if the ranks of a node cannot share memory;
  //   - for LBFGS, and without whole_parameters for another optimizer than Adam, AdamW, RMSprop and SGD, also for
  //     optim::Muon. A class that is derived from one of these counts as it, so its steps must be elementwise as well;
  //   - for an optimizer that has taken a step, or that makes its state in its constructor, as Adagrad does;
  //   - for parameters that are not float32, not on the CPU, or have holes in memory;
  //   - if ShardOptions, the kind of optimizer, or the sizes, strides or groups of parameters differ between ranks.
  //   - with share_parameters, for a parameter that shares its storage with other data, or is not equal on the ranks of
  //     a node, and if the memory is not available: before anything is changed;
  //   - for parameter_format, which has no effect; for other copies than 1 and 2, and for 2 on one node.
  ShardedOptimizer(torch::optim::Optimizer& inner, ProcessGroupPtr group, const ShardOptions& options = {});

  // Over all ranks of the group of `reducer`, which outlives this. A collective, between steps. `reducer` averages the
  // gradients of `inner`'s parameters, in equal replicas; shards follow its buckets. Throws as
  // the other constructor, but nodes are those of the reducer's hook, and one rank per node is possible. Also throws
  // c10::ValueError on all ranks for node_size and share_parameters, for a hook after which ranks have unequal
  // gradients, for a hook's error feedback in a variable format, and for a parameter that the reducer does not average.
  ShardedOptimizer(torch::optim::Optimizer& inner, GradientReducer& reducer, const ShardOptions& options = {});
  ~ShardedOptimizer();
  ShardedOptimizer(const ShardedOptimizer&) = delete;
  ShardedOptimizer& operator=(const ShardedOptimizer&) = delete;

  // A collective: a step of the wrapped optimizer for this rank's shard, then the exchange. With share_parameters it
  // waits for the node's ranks instead, before and after the rank's step. Parameters whose gradient
  // is undefined are skipped, as by LibTorch's optimizers: on all ranks or on none. Throws c10::DistBackendError if a
  // rank that shares the shards fails; parameters are then partly those of the new step. Throws what the optimizer's
  // step throws, and c10::ValueError for a sparse gradient, and for a shared parameter that was moved; the other ranks
  // then fail as well. Only a failure on a rank without a shard stays in its node.
  void step();

  // step() in two halves, so that the exchange over all ranks overlaps with the next forward pass. start_step returns
  // while parameters are still exchanged: from then on until wait_for() or finish_step() has returned, their values are
  // undefined, and nobody else may write them. Both throw what step() throws for peers, on any call after the failure
  // of one. The exchange begins with the last buckets, so that the parameters that a forward pass reads first come
  // first. Within nodes start_step does all of step().
  //
  //   optimizer.start_step();
  //   for (torch::nn::AnyModule& layer : *layers) {  // The layers of a torch::nn::Sequential
  //     optimizer.wait_for(layer.ptr()->parameters());
  //     x = layer.forward(x);
  //   }
  //
  // The functions below, and the next start_step(), wait for the end of the exchange themselves.
  void start_step();
  // Returns once these parameters are exchanged. Parameters that are not sharded may be among them.
  void wait_for(const std::vector<at::Tensor>& parameters);
  // Returns once all parameters are exchanged.
  void finish_step();

  // A collective: the 2-norm of all averaged gradients as one vector, the same on all ranks. It has the bits of
  // gradients that are not sharded (ops/cpu/optimizer/gradient_norm.h). Inf or NaN if, and only if, an element is.
  double gradient_norm();

  // gradient_norm, then multiplies the gradients so that their norm is at most `max_norm` (> 0), as LibTorch's
  // clip_grad_norm_. Returns the norm before.
  double clip_gradient_norm(double max_norm);

  // A collective: the averaged gradients of this rank's shard, as views: 1-D, without those that are undefined.
  std::vector<at::Tensor> own_gradients();

  // Makes the gradients of all parameters undefined.
  void zero_grad();

  // Masters get the values of the parameters. All ranks call it after they have changed parameters in place between two
  // steps, e.g. loaded other weights or clamped them, in the same way. The next step would undo that change, so it
  // throws c10::ValueError on a rank that has not called this, and c10::DistBackendError on the others. Not a
  // collective. Does nothing without masters, and before the first step.
  void take_parameters();

  // A collective: the optimizer's state of whole parameters, on rank 0 of the group; empty on all others. The names are
  // those of LibTorch's state, after a parameter's first name in `parameters`:
  //   NAME.step: int64, a scalar; not of SGD and of optim::Muon's matrices
  //   NAME.exp_avg, NAME.exp_avg_sq, NAME.max_exp_avg_sq (Adam, AdamW), NAME.square_avg, NAME.grad_avg (RMSprop),
  //   NAME.momentum_buffer (RMSprop, SGD): float32, of the parameter's shape; those that the options need
  //   NAME.master: float32, of the parameter's shape, if parameters are sent as differences
  // Parameters without elements have a state as well, of tensors without elements.
  //   NAME.momentum_buffer (optim::Muon's matrices); its other parameters as AdamW
  // Throws c10::DistBackendError if a peer fails, and c10::ValueError for a parameter that `parameters` lacks, and for
  // another optimizer than Adam, AdamW, optim::Muon, RMSprop and SGD.
  hooks::HookState state(const std::vector<hooks::NamedParameter>& parameters);

  // Takes this rank's shard of such a state, which every rank has as a whole, before the first step, and after reducer
  // and parameters have been loaded. A collective over all ranks. The world that saved it may have been any, also one
  // without shards. Masters begin with the parameters' values if the state has none. Throws c10::ValueError as state
  // does, and CorruptInputError naming a tensor that is missing, unknown, or of another shape or dtype than its
  // parameter, before anything is changed.
  void load_state(const hooks::HookState& saved, const std::vector<hooks::NamedParameter>& parameters);

  // A collective over all ranks: the largest magnitude of any difference between masters and parameters; 0 without
  // masters.
  double largest_difference();

  // Whether parameters are sent as differences.
  bool has_masters() const;

  // Bytes of parameters that this rank has sent, and of averages for second copies; 0 within nodes.
  int64_t payload_bytes_sent() const;

  // Number of elements of all parameters that are sharded; equal on all ranks.
  int64_t elements() const;
  int64_t own_elements() const;  // Elements of this rank's shard; 0 if it is empty.
  // Number of shards, some of which may be empty: of ranks of this rank's node, or of the group.
  int64_t shards() const;

  // The implementation, for the recovery of lost ranks.
  sharding::ShardedParts& parts() { return *parts_; }

 private:
  std::unique_ptr<sharding::ShardedParts> parts_;
};

}  // namespace narrowcast
