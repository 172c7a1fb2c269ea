#include "trainer/ddp/sharding/parameter_shards.h"

#include <c10/util/Exception.h>

#include <utility>

namespace narrowcast::sharding {
namespace {

// Copies of float32 elements, so `tensors` must be what Elements expects.
Elements checked_elements(const std::vector<at::Tensor>& tensors, int64_t numel) {
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(
        tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.dim() == 1 && tensor.is_contiguous(),
        "a tensor of a gather must be float32 [n] on the CPU, but is ", tensor.toString(), " ", tensor.sizes());
    elements += tensor.numel();
  }
  TORCH_CHECK_VALUE(elements == numel, "tensors of a gather have ", elements, " elements, but must have ", numel);
  return Elements(tensors);
}

}  // namespace

ParameterShards::ParameterShards(const ProcessGroupPtr& group, const std::function<ShardRequest()>& read)
    : ParameterShards(group, agree_on_shards(group, read)) {}

ParameterShards::ParameterShards(const ProcessGroupPtr& group, const ShardRequest& request)
    : group_(group),
      rank_(group->getRank()),
      parameters_(request.parameters),
      nodes_(find_shared_nodes(group, request.options.node_size())),
      shards_(cut(parameters_, nodes_->memory->local_size(), request.options)),
      exchange_(group, nodes_) {
  set_sizes(shards_, largest_shard(parameters_, nodes_->layout, request.options));
}

void ParameterShards::set_sizes(const std::vector<Shard>& shards, int64_t largest) {
  std::vector<int64_t> numels;
  for (const Shard& shard : shards) {
    numels.push_back(elements_of(shard));
  }
  exchange_.set_sizes(std::move(numels), largest);
}

ParameterShards::~ParameterShards() = default;

std::vector<at::Tensor> ParameterShards::own_pieces() const {
  std::vector<at::Tensor> pieces;
  for (const Piece& piece : shards_[nodes_->memory->local_rank()]) {
    const at::Tensor& parameter = parameters_[piece.parameter];
    pieces.push_back(piece.numel == parameter.numel() ? parameter.detach() : memory_of(parameter, piece));
  }
  return pieces;
}

void ParameterShards::exchange(const std::exception_ptr& failure) {
  std::vector<Elements> elements;
  for (const Shard& shard : shards_) {
    Elements& of_shard = elements.emplace_back();
    for (const Piece& piece : shard) {
      of_shard.add(memory_of(parameters_[piece.parameter], piece));
    }
  }
  exchange_.run("exchanging the shards of the parameters", elements, failure);
  for (const at::Tensor& parameter : parameters_) {
    parameter.unsafeGetTensorImpl()->bump_version();  // As an operator that changes it.
  }
}

void ParameterShards::gather(const std::vector<at::Tensor>& own, const std::vector<int64_t>& numels, int64_t largest,
                             const std::vector<std::vector<at::Tensor>>& wanted) {
  const int64_t local_rank = nodes_->memory->local_rank();
  TORCH_CHECK_VALUE(numels.size() == shards_.size() && wanted.size() == shards_.size(), "a gather of ", shards_.size(),
                    " ranks has ", numels.size(), " numbers and ", wanted.size(), " lists");
  std::vector<Elements> elements(shards_.size());
  for (size_t other = 0; other < shards_.size(); ++other) {
    TORCH_CHECK_VALUE(numels[other] >= 0 && numels[other] <= largest, "a rank gives ", numels[other],
                      " elements to a gather of at most ", largest);
    const bool is_own = static_cast<int64_t>(other) == local_rank;
    if (is_own || !wanted[other].empty()) {
      elements[other] = checked_elements(is_own ? own : wanted[other], numels[other]);
    } else {
      elements[other].add_gap(numels[other]);
    }
  }
  NodeExchange exchange(group_, nodes_);
  exchange.set_sizes(numels, largest);
  exchange.run("gathering the optimizer's state", elements, nullptr);
}

}  // namespace narrowcast::sharding
