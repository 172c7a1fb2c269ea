#include "ops/comm/groups/announcement_exchange.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <utility>

namespace narrowcast::collectives {
namespace {

using node::NodeMemory;
using node::Phase;

// The node's memory counts in floats.
constexpr int64_t kFloats = kAnnouncementBytes / static_cast<int64_t>(sizeof(float));

at::Tensor make_slots(int64_t ranks) { return at::zeros({ranks, kAnnouncementBytes}, at::kByte); }

}  // namespace

AnnouncementExchange::AnnouncementExchange(int64_t rank, int64_t world_size)
    : rank_(rank), world_size_(world_size), slots_(make_slots(world_size)) {}

void AnnouncementExchange::set_nodes(std::shared_ptr<const node::FoundNodes> nodes) {
  if (nodes == nodes_) {
    return;
  }
  nodes_ = std::move(nodes);
  of_other_nodes_.clear();
  if (memory() == nullptr) {
    return;
  }
  of_own_node_ = make_slots(memory()->local_size());
  for (int64_t other = 0; other < nodes_->layout.nodes(); ++other) {
    if (other != nodes_->layout.node_of(rank_)) {
      const auto& ranks = nodes_->layout.ranks_of(other);
      of_other_nodes_.push_back({ranks, make_slots(static_cast<int64_t>(ranks.size()))});
    }
  }
}

void AnnouncementExchange::set_own(const Announcement& own) {
  slots_.zero_();
  slots_[rank_].copy_(slot_of(own));
}

void AnnouncementExchange::start(engine::Transport& transport) {
  receives_.clear();
  if (memory() != nullptr) {
    start_in_node(transport);
    return;
  }
  for (int64_t distance = 1; distance < world_size_; ++distance) {
    const int64_t peer = transport.peer_before(distance);
    receives_.push_back(transport.post_receive({slots_[peer], peer, kChannel}));
  }
  for (int64_t distance = 1; distance < world_size_; ++distance) {
    transport.send({slots_[rank_], transport.peer_after(distance), kChannel});
  }
}

void AnnouncementExchange::start_in_node(engine::Transport& transport) {
  is_in_progress_ = true;
  is_staged_ = false;
  use_ = memory()->take_slot(kArray);
  for (const OfNode& other : of_other_nodes_) {
    const int64_t sender = other.ranks[static_cast<size_t>(memory()->local_rank()) % other.ranks.size()];
    receives_.push_back(transport.post_receive({other.slots.view({-1}), sender, kChannel}));
  }
  if (memory()->all_have_reached(Phase::kFinished, NodeMemory::before(use_))) {
    stage();
  }
}

void AnnouncementExchange::stage() {
  memory()->choose_buffer(use_, kFloats);
  staged(memory()->local_rank()).copy_(slots_[rank_]);
  memory()->reach(Phase::kStaged, use_);
  is_staged_ = true;
}

at::Tensor AnnouncementExchange::staged(int64_t local_rank) const {
  return at::from_blob(memory()->staging_buffer(use_, local_rank, kFloats), {kAnnouncementBytes}, at::kByte);
}

void AnnouncementExchange::forward(engine::Transport& transport) {
  if (!is_staged_) {
    memory()->wait_until_all_reached(transport, Phase::kFinished, NodeMemory::before(use_));
    stage();
  }
  memory()->wait_until_all_reached(transport, Phase::kStaged, use_);
  for (int64_t local_rank = 0; local_rank < memory()->local_size(); ++local_rank) {
    of_own_node_[local_rank].copy_(staged(local_rank));
    slots_[memory()->rank_of(local_rank)].copy_(of_own_node_[local_rank]);
  }
  memory()->reach(Phase::kFinished, use_);
  is_in_progress_ = false;
  for (const OfNode& other : of_other_nodes_) {
    for (int64_t index = memory()->local_rank(); index < std::ssize(other.ranks); index += memory()->local_size()) {
      transport.send({of_own_node_.view({-1}), other.ranks[static_cast<size_t>(index)], kChannel});
    }
  }
}

void AnnouncementExchange::wait(engine::Transport& transport) {
  for (const int64_t receive : receives_) {
    transport.wait_receive(receive);
  }
  for (const OfNode& other : of_other_nodes_) {
    for (size_t index = 0; index < other.ranks.size(); ++index) {
      slots_[other.ranks[index]].copy_(other.slots[static_cast<int64_t>(index)]);
    }
  }
}

void AnnouncementExchange::give_up() {
  if (std::exchange(is_in_progress_, false)) {
    memory()->give_up();
  }
}

}  // namespace narrowcast::collectives
