#include "ops/collectives/all_gather/all_gather_job.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ops/common/backend_errors.h"

namespace narrowcast::collectives {
namespace {

using node::NodeMemory;
using node::Phase;

// The array of the node's memory that averages of whole buckets use as well.
constexpr int64_t kMessagesArray = 0;

// The first byte of a message's header.
enum class Header : uint8_t { kBytes, kFailure };

std::byte* data_of(const at::Tensor& message) {
  return reinterpret_cast<std::byte*>(message.mutable_data_ptr<uint8_t>());
}

std::shared_ptr<NodeMemory> memory_of_levels(const node::FoundNodes& nodes) {
  return nodes.layout.has_levels() ? nodes.memory : nullptr;
}

}  // namespace

AllGatherJob::AllGatherJob(AllGatherOptions options, std::shared_ptr<MessageMemory> memory)
    : options_(std::move(options)),
      memory_(std::move(memory)),
      node_(memory_of_levels(*options_.nodes)),
      column_(ranks_of_column(options_.nodes->layout.local_rank_of(options_.rank))),
      guard_(node_) {
  TORCH_INTERNAL_ASSERT(std::ssize(options_.bytes) == options_.nodes->layout.world_size());
  for (const int64_t rank : column_) {
    offsets_.add(kHeaderBytes + options_.bytes[rank]);
  }
  for (int64_t local_rank = 0; has_levels() && local_rank < node_->local_size(); ++local_rank) {
    node_->check_numel(column_floats(local_rank));
  }
}

AllGatherJob::~AllGatherJob() = default;

// The ranks with that local rank, by node; all ranks with one level. A rank without a segment is alone.
std::vector<int64_t> AllGatherJob::ranks_of_column(int64_t local_rank) const {
  const node::NodeLayout& layout = options_.nodes->layout;
  return local_rank < layout.segments() ? layout.owners_of(local_rank)
                                        : std::vector<int64_t>{node_->rank_of(local_rank)};
}

// The node's memory counts in floats.
int64_t AllGatherJob::column_floats(int64_t local_rank) const {
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  int64_t bytes = 0;
  for (const int64_t rank : ranks_of_column(local_rank)) {
    bytes += kHeaderBytes + options_.bytes[rank];
  }
  return (bytes + kFloat - 1) / kFloat;
}

std::byte* AllGatherJob::column_buffer(int64_t local_rank) const {
  return reinterpret_cast<std::byte*>(node_->staging_buffer(use_, local_rank, column_floats(local_rank)));
}

int64_t AllGatherJob::payload_bytes() const {
  return (kHeaderBytes + options_.bytes[options_.rank]) * (std::ssize(column_) - 1);
}

void AllGatherJob::start(engine::Transport& transport) {
  guard_.begin();
  if (has_levels()) {
    use_ = node_->take_slot(kMessagesArray);
  }
  placed_ = offsets_.place_in(*memory_, transport.most_in_flight());
  receives_.clear();
  for (size_t place = 0; place < column_.size(); ++place) {
    if (column_[place] != options_.rank) {
      receives_.push_back(transport.post_receive({placed_[place], column_[place], /*channel=*/0}));
    }
  }
  failure_ = nullptr;
  failed_.reset();
  const auto own = std::ranges::find(column_, options_.rank);
  const at::Tensor& message = placed_[own - column_.begin()];
  write_message(data_of(message));
  // Each rank begins with the rank after it, so that not all of them send to the same rank at once.
  std::vector<int64_t> peers(own + 1, column_.end());
  peers.insert(peers.end(), column_.begin(), own);
  for (const int64_t peer : peers) {
    transport.send({message, peer, /*channel=*/0});
  }
}

void AllGatherJob::write_message(std::byte* message) {
  std::memset(message, static_cast<int>(Header::kBytes), kHeaderBytes);
  try {
    call_.give(message + kHeaderBytes);
  } catch (...) {
    failure_ = std::current_exception();
    message[0] = static_cast<std::byte>(Header::kFailure);
  }
}

// After a failure nothing more is taken. The exchange continues, because all ranks must learn of the failure.
void AllGatherJob::take_message(int64_t rank, const std::byte* message) {
  if (message[0] == static_cast<std::byte>(Header::kFailure)) {
    failed_ = rank;
  } else if (!failed_ && options_.bytes[rank] > 0) {
    call_.take(rank, message + kHeaderBytes);
  }
}

void AllGatherJob::throw_failure() const {
  if (failure_) {
    std::rethrow_exception(failure_);
  }
  if (failed_) {
    throw_backend_error(options_.rank, options_.name, c10::str("rank ", *failed_, " could not take part in it"));
  }
}

void AllGatherJob::wait_for_column(engine::Transport& transport) {
  for (const int64_t receive : receives_) {
    transport.wait_receive(receive);
  }
}

// With two levels. The ranks of the node must have read what was in the memory before.
void AllGatherJob::advance(engine::Transport& transport) {
  wait_for_column(transport);
  node_->wait_until_all_reached(transport, Phase::kFinished, NodeMemory::before(use_));
  const int64_t floats = column_floats(node_->local_rank());
  node_->choose_buffer(use_, floats);
  std::byte* to = column_buffer(node_->local_rank());
  for (const at::Tensor& message : placed_) {
    std::memcpy(to, message.const_data_ptr(), message.numel());
    to += message.numel();
  }
  node_->reach(Phase::kStaged, use_);
}

// Takes the bytes that another rank of the node has put into its memory.
void AllGatherJob::take_column(int64_t local_rank) {
  const std::byte* from = column_buffer(local_rank);
  for (const int64_t rank : ranks_of_column(local_rank)) {
    take_message(rank, from);
    from += kHeaderBytes + options_.bytes[rank];
  }
}

at::Tensor AllGatherJob::finish(engine::Transport& transport) {
  if (!has_levels()) {
    wait_for_column(transport);
  }
  for (size_t place = 0; place < column_.size(); ++place) {
    take_message(column_[place], data_of(placed_[place]));
  }
  if (has_levels()) {
    for (int64_t distance = 1; distance < node_->local_size(); ++distance) {
      const int64_t local_rank = (node_->local_rank() + distance) % node_->local_size();
      node_->wait_until_reached(transport, {Phase::kStaged, use_, local_rank});
      take_column(local_rank);
    }
    node_->reach(Phase::kFinished, use_);
  }
  guard_.end();
  call_ = {};
  if (failure_ || failed_) {
    transport.wait_sends();  // This rank may end now.
  }
  throw_failure();
  return {};
}

}  // namespace narrowcast::collectives
