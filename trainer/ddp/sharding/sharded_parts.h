// The parts of a ShardedOptimizer.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <narrowcast/gradient_reducer.h>
#include <narrowcast/sharded_optimizer.h>
#include "trainer/ddp/sharding/group_exchange.h"
#include "trainer/ddp/sharding/node_exchange.h"
#include "trainer/ddp/sharding/optimizer_kinds.h"
#include "trainer/ddp/sharding/shard_agreement.h"
#include "trainer/ddp/sharding/shared_parameters.h"
#include "trainer/ddp/shards/copy_exchange.h"
#include "trainer/ddp/shards/pieces.h"
#include "trainer/ddp/shards/shard_exchange.h"
#include "trainer/ddp/shards/shards.h"

namespace narrowcast::sharding {

// The ranks that share the shards, and how.
struct ShardPlace {
  ProcessGroupPtr group;
  bool cuts_parameters = true;  // Else shards consist of whole parameters.
  std::unique_ptr<ShardExchange> exchange = nullptr;
  NodeExchange* shared = nullptr;  // `exchange`, if the ranks of a node share the parameters themselves
  // Over all ranks; else null:
  GroupExchange* over_all = nullptr;  // `exchange`
  GradientReducer* reducer = nullptr;
  node::NodeLayout layout = node::NodeLayout::flat(1);   // Shards of buckets follow from it.
  std::optional<WireFormat> differences = std::nullopt;  // How differences are sent; empty without masters.
  std::unique_ptr<CopyExchange> copies = nullptr;        // Null without second copies.
};

// The functions of the same names are ShardedOptimizer's.
class ShardedParts {
 public:
  // Both are collectives. They check what the public constructors refuse.
  static std::unique_ptr<ShardedParts> within_nodes(torch::optim::Optimizer& inner, const ProcessGroupPtr& group,
                                                    const ShardOptions& options);
  static std::unique_ptr<ShardedParts> over_all(torch::optim::Optimizer& inner, GradientReducer& reducer,
                                                const ShardOptions& options);

  ShardedParts(torch::optim::Optimizer& inner, ShardRequest request, ShardPlace place);
  ~ShardedParts();
  ShardedParts(const ShardedParts&) = delete;
  ShardedParts& operator=(const ShardedParts&) = delete;

  void step() {
    start_step();
    finish_step();
  }
  void start_step();
  void wait_for(const std::vector<at::Tensor>& parameters);
  void finish_step();
  void zero_grad();
  void take_parameters();
  double gradient_norm();
  std::vector<at::Tensor> own_gradients();
  hooks::HookState state(const std::vector<hooks::NamedParameter>& named);
  void load_state(const hooks::HookState& saved, const std::vector<hooks::NamedParameter>& named);
  // Over all ranks with second copies, a collective before each step, of which start_step is otherwise the first part:
  // sends the averages of this rank's shard to the rank that holds its copy. It changes neither parameters nor state.
  // If this rank or an owner of its copies fails alone, returns false: start_step then throws on all ranks.
  bool share_gradients();
  // Over all ranks, a collective: the shards become those of the last averaged pass.
  void follow_buckets();
  bool has_copies() const { return place_.copies != nullptr; }
  // Whether other ranks hold the state of this rank's shard.
  bool is_held_elsewhere() const { return has_copies() || place_.exchange->counts().size() > 1; }
  // Over all ranks, a collective: returns once all ranks with shards have called it. If share_gradients has failed on
  // one of them, returns its error there, and a c10::DistBackendError that names it on the others. An error of a rank
  // that has no shard, but a copy, stays there.
  std::exception_ptr meet();
  // After share_gradients, instead of start_step, if peers are lost: the step of the pieces that this rank holds. Their
  // parameters become what start_step and the exchange would make of them. All other parameters remain as they were.
  void step_alone();
  // After an exchange has failed: the same for the parameters of these pieces.
  void finish_held();
  // Whether the last exchange has not failed.
  bool has_all_parameters() const;
  // The masters and the state of this rank's shard, and of its copies, in the memory of the optimizer's own tensors,
  // under the first names in `named`. Not a collective.
  pieces::HeldPieces held_pieces(const std::vector<hooks::NamedParameter>& named) const;
  // The same without tensors.
  std::vector<pieces::Range> held_ranges(const std::vector<hooks::NamedParameter>& named) const;
  // Before the first step: shard and copies get this state, a piece for each range of held_ranges. The tensors become
  // the optimizer's. Not a collective. Throws CorruptInputError naming a tensor that is missing or unknown.
  void take_pieces(const std::vector<pieces::Piece>& pieces);
  double largest_difference();
  bool has_masters() const { return place_.differences.has_value(); }
  int64_t payload_bytes_sent() const { return payload_bytes_sent_; }
  int64_t elements() const;
  int64_t own_elements() const { return elements_of(own_shard()); }
  int64_t shards() const { return static_cast<int64_t>(shards_.size()); }

 private:
  // A rank tells this about the state of a piece: the number of steps, and which tensors there are, as bits.
  struct PieceHeader {
    int64_t step = 0;
    int64_t tensors = 0;

    bool has(size_t tensor) const { return (tensors >> tensor & 1) != 0; }
  };
  using PieceHeaders = std::vector<std::vector<PieceHeader>>;  // By shard, of each of its pieces.
  static constexpr int64_t kNoState = -1;                      // As PieceHeader::step.
  // Some pieces, and memory for the elements of each.
  struct PieceMemory {
    Shard pieces;
    std::vector<at::Tensor> memory;
  };

  const Shard& own_shard() const { return shards_[place_.exchange->own()]; }
  int64_t own_pieces() const { return std::ssize(own_shard()); }
  // The pieces that a rank steps: its own shard, then the shards of which it holds copies.
  Shard held_of(const std::vector<Shard>& shards) const;
  std::vector<Shard> cut(int64_t count) const;
  void use(std::vector<Shard> shards);
  void find_first_places();
  void make_tensors(std::vector<at::Tensor> masters = {});
  void take_masters();
  void check_parameters() const;
  void replace_parameters();
  void move_to(std::vector<Shard> shards);

  void step_pieces();
  void start_exchange(const std::exception_ptr& failure);
  void pass_gradients();
  at::Tensor gradient_of(const Piece& piece) const;
  Elements gradients_of(const Shard& shard) const;
  std::vector<std::vector<int64_t>> gather_numbers(const std::string& name, const std::vector<int64_t>& own);
  Elements elements_of_parameters(const Shard& shard) const;
  std::vector<at::Tensor> own_masters() const;

  const OptimizerKind& kind() const;
  bool counts_steps(const OptimizerKind& kind, size_t parameter) const;
  std::optional<ParameterState> state_of(const OptimizerKind& kind, size_t piece) const;
  void set_state(const OptimizerKind& kind, size_t piece, const ParameterState& state);
  void forget(const OptimizerKind& kind, size_t tensor);
  std::vector<std::string> names_in(const std::vector<hooks::NamedParameter>& named) const;
  PieceHeaders gather_headers(const OptimizerKind& kind);
  std::unordered_map<size_t, PieceHeader> by_parameter(const PieceHeaders& headers) const;
  std::vector<at::Tensor> own_values(const OptimizerKind& kind, size_t tensor) const;
  void gather(const std::vector<at::Tensor>& own_values, const PieceMemory& target);

  torch::optim::Optimizer& inner_;
  const std::vector<at::Tensor> parameters_;
  const std::vector<size_t> groups_;  // The parameters belong to these groups of the optimizer.
  const std::vector<int64_t> costs_;  // ShardRequest::costs
  const std::unordered_map<const at::TensorImpl*, size_t> indices_;  // The parameters' places in their list.
  const ShardPlace place_;
  std::unique_ptr<SharedParameters> shared_;  // Null if each rank has its own copy of the parameters.
  const bool follows_buckets_;
  std::vector<uint32_t> versions_;  // With masters, those of the parameters after the last step; else empty.
  bool has_state_ = false;          // Since the first step, or since a state was loaded.
  int64_t payload_bytes_sent_ = 0;
  std::vector<std::vector<at::Tensor>> buckets_;  // shards_ follow these.
  std::vector<Shard> shards_;
  // Where elements of a parameter begin in a shard: the least such place in any shard. Empty within nodes.
  std::vector<int64_t> first_places_;
  Shard held_;  // held_of(shards_)
  // These pieces, as the optimizer steps them: parts of parameters, or masters.
  std::vector<at::Tensor> tensors_;
  // The gradients of the next step are those of the copies as well (share_gradients), unless there was a failure.
  bool has_shared_gradients_ = false;
  std::exception_ptr failure_;
};

}  // namespace narrowcast::sharding
