#include "trainer/ddp/sharding/parameter_shards.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "trainer/ddp/sharding/node_exchange.h"

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

ParameterShards::ParameterShards(const ProcessGroupPtr& group, ShardRequest request)
    : group_(group),
      options_(request.options),
      parameters_(std::move(request.parameters)),
      indices_(indices_of(parameters_)),
      hook_(std::move(request.hook)) {
  if (hook_) {
    shard_over_all();
  } else {
    shard_within_nodes();
  }
}

void ParameterShards::shard_within_nodes() {
  nodes_ = find_shared_nodes(group_, options_.node_size());
  ranks_ = nodes_->layout.ranks_of(nodes_->layout.node_of(group_->getRank()));
  exchange_ = std::make_unique<NodeExchange>(group_, nodes_);
  use(cut(parameters_, exchange_->count(), options_), largest_shard(parameters_, nodes_->layout, options_));
}

// Until the first averaged pass, all parameters count as one bucket.
void ParameterShards::shard_over_all() {
  auto average_all_again = c10::make_scope_exit([&] { hook_->average_shards(std::nullopt); });
  HookShards shards = average_shards(group_, *hook_, options_);
  nodes_ = std::move(shards.nodes);
  ranks_.resize(group_->getSize());
  std::iota(ranks_.begin(), ranks_.end(), 0);
  auto exchange = std::make_unique<GroupExchange>(group_, nodes_);
  over_all_ = exchange.get();
  exchange_ = std::move(exchange);
  differences_ = differences_of(options_);
  if (!options_.whole_parameters()) {
    layout_ = std::move(shards.layout);
    buckets_ = {parameters_};
  }
  std::vector<Shard> all =
      layout_ ? cut_buckets(buckets_, indices_, *layout_) : cut(parameters_, exchange_->count(), options_);
  masters_ = pieces_of(all[exchange_->own()]);
  use(std::move(all), 0);
  average_all_again.release();
}

// `largest`: the largest shard of other copies.
void ParameterShards::use(std::vector<Shard> shards, int64_t largest) {
  shards_ = std::move(shards);
  std::vector<int64_t> numels;
  for (const Shard& shard : shards_) {
    numels.push_back(elements_of(shard));
    largest = std::max(largest, numels.back());
  }
  exchange_->set_sizes(std::move(numels), largest);
}

// The hook averages all elements again.
ParameterShards::~ParameterShards() {
  if (layout_) {
    hook_->average_shards(std::nullopt);
  }
}

// In the parameter's memory.
at::Tensor ParameterShards::part_of(const Piece& piece) const {
  const at::Tensor& parameter = parameters_[piece.parameter];
  return piece.numel == parameter.numel() ? parameter.detach() : memory_of(parameter, piece);
}

// In the parameters' memory, or copies for masters.
std::vector<at::Tensor> ParameterShards::pieces_of(const Shard& shard) const {
  std::vector<at::Tensor> pieces;
  for (const Piece& piece : shard) {
    const at::Tensor part = part_of(piece);
    pieces.push_back(has_masters() ? part.clone() : part);
  }
  return pieces;
}

std::vector<at::Tensor> ParameterShards::own_pieces() const {
  return has_masters() ? masters_ : pieces_of(own_shard());
}

bool ParameterShards::follow(const std::vector<std::vector<at::Tensor>>& buckets) {
  const at::NoGradGuard no_grad;
  const bool moves = layout_.has_value() && !are_same(buckets, buckets_);
  if (moves) {
    check_buckets(parameters_, buckets, options_);
    std::vector<Shard> shards = cut_buckets(buckets, indices_, *layout_);
    if (has_masters()) {
      masters_ = moved_masters(shards[exchange_->own()]);
    }
    use(std::move(shards), 0);
    buckets_ = buckets;
  }
  for (size_t i = 0; has_masters() && !has_taken_masters_ && i < masters_.size(); ++i) {
    memory_of_whole(masters_[i]).copy_(memory_of(parameters_[own_shard()[i].parameter], own_shard()[i]));
  }
  has_taken_masters_ = true;
  return moves;
}

std::vector<at::Tensor> ParameterShards::moved_masters(const Shard& target) const {
  const auto memory_of_each = [](const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> memory;
    for (const at::Tensor& tensor : tensors) memory.push_back(memory_of_whole(tensor));
    return memory;
  };
  if (!has_taken_masters_) {
    return pieces_of(target);
  }
  std::vector<at::Tensor> moved;
  for (const Piece& piece : target) {
    moved.push_back(at::empty_like(part_of(piece)));
  }
  std::vector<Elements> elements;
  for (const Shard& shard : shards_) {
    elements.push_back(elements_in(shard, target, memory_of_each(moved)));
  }
  over_all_->move("moving the masters of the parameters", Elements(memory_of_each(masters_)), elements);
  return moved;
}

void ParameterShards::exchange(const std::exception_ptr& failure) {
  const at::NoGradGuard no_grad;
  constexpr const char* kName = "exchanging the shards of the parameters";
  std::vector<Elements> elements;
  for (const Shard& shard : shards_) {
    Elements& of_shard = elements.emplace_back();
    for (const Piece& piece : shard) {
      of_shard.add(memory_of(parameters_[piece.parameter], piece));
    }
  }
  if (has_masters()) {
    Elements masters;
    for (const at::Tensor& master : masters_) masters.add(memory_of_whole(master));
    over_all_->add_differences(kName, *differences_, masters, elements, failure);
  } else {
    exchange_->run(kName, elements, failure);
  }
  for (const at::Tensor& parameter : parameters_) {
    parameter.unsafeGetTensorImpl()->bump_version();  // As an operator that changes it.
  }
}

void ParameterShards::gather(const std::vector<at::Tensor>& own, const std::vector<int64_t>& numels, int64_t largest,
                             const std::vector<std::vector<at::Tensor>>& wanted) {
  TORCH_CHECK_VALUE(numels.size() == shards_.size() && wanted.size() == shards_.size(), "a gather of ", shards_.size(),
                    " ranks has ", numels.size(), " numbers and ", wanted.size(), " lists");
  std::vector<Elements> elements(shards_.size());
  for (size_t other = 0; other < shards_.size(); ++other) {
    TORCH_CHECK_VALUE(numels[other] >= 0 && numels[other] <= largest, "a rank gives ", numels[other],
                      " elements to a gather of at most ", largest);
    const bool is_own = static_cast<int64_t>(other) == exchange_->own();
    if (is_own || !wanted[other].empty()) {
      elements[other] = checked_elements(is_own ? own : wanted[other], numels[other]);
    } else {
      elements[other].add_gap(numels[other]);
    }
  }
  std::unique_ptr<ShardExchange> exchange;
  if (over_all_ != nullptr) {
    exchange = std::make_unique<GroupExchange>(group_, nodes_);
  } else {
    exchange = std::make_unique<NodeExchange>(group_, nodes_);
  }
  exchange->set_sizes(numels, largest);
  exchange->run("gathering the optimizer's state", elements, nullptr);
}

}  // namespace narrowcast::sharding
