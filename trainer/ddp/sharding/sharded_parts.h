// The parts of a ShardedOptimizer.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/sharded_optimizer.h>
#include "ops/comm/node/find_nodes.h"
#include "trainer/ddp/sharding/optimizer_kinds.h"
#include "trainer/ddp/sharding/shard_exchange.h"
#include "trainer/ddp/sharding/shards.h"

namespace narrowcast::sharding {

// The functions of the same names are ShardedOptimizer's.
class ShardedParts {
 public:
  ShardedParts(torch::optim::Optimizer& inner, const ProcessGroupPtr& group, const ShardOptions& options);

  void step();
  void zero_grad();
  hooks::HookState state(const std::vector<hooks::NamedParameter>& named);
  void load_state(const hooks::HookState& saved, const std::vector<hooks::NamedParameter>& named);
  int64_t elements() const;
  int64_t own_elements() const { return elements_of(shards_[local_rank_]); }
  int64_t shards() const { return static_cast<int64_t>(shards_.size()); }

 private:
  // A rank tells this about the state of a piece: the number of steps, and which tensors there are, as bits.
  struct PieceHeader {
    int64_t step = 0;
    int64_t tensors = 0;

    bool has(size_t tensor) const { return (tensors >> tensor & 1) != 0; }
  };
  using PieceHeaders = std::vector<std::vector<PieceHeader>>;  // By local rank, of each piece of the shard.
  static constexpr int64_t kNoState = -1;                      // As PieceHeader::step.

  std::vector<Shard> cut(int64_t count) const;
  int64_t largest_shard() const;
  void replace_parameters();
  void step_own_pieces();
  void exchange_parameters(const std::exception_ptr& failure);
  void pass_gradients();
  std::unique_ptr<Elements> elements_of_parameters(const Shard& shard) const;

  const OptimizerKind& kind() const;
  std::optional<ParameterState> own_state(const OptimizerKind& kind, size_t piece) const;
  std::vector<std::string> names_in(const std::vector<hooks::NamedParameter>& named) const;
  PieceHeaders gather_headers(const OptimizerKind& kind);
  std::vector<at::Tensor> gather_tensor(const OptimizerKind& kind, size_t tensor, const PieceHeaders& headers);

  torch::optim::Optimizer& inner_;
  const bool whole_;
  const std::vector<at::Tensor> parameters_;
  const std::vector<size_t> groups_;  // The parameters belong to these groups of the optimizer.
  const std::shared_ptr<const node::FoundNodes> nodes_;
  const int64_t local_rank_;
  const bool is_rank_0_;             // Rank 0 of the whole group gathers the state.
  const std::vector<Shard> shards_;  // This rank's node has these, by local rank.
  ShardExchange exchange_;
  std::vector<at::Tensor> own_;  // This rank's pieces, as the optimizer steps them.
};

}  // namespace narrowcast::sharding
