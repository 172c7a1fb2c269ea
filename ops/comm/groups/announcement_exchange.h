// Announcements (agree.h) between the ranks of a group, in a job of the engine.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ops/comm/engine/engine.h"
#include "ops/comm/groups/agree.h"
#include "ops/comm/node/find_nodes.h"

namespace narrowcast::collectives {

// Every rank gets the announcements of all ranks, in slots of kAnnouncementBytes. In one level each rank sends its
// announcement to all others. With nodes, the ranks of a node pass announcements through its memory, and a rank gets
// those of another node in one message:
//
// start:   puts this rank's announcement into the node's memory.
// forward: waits for those of the node's ranks, and sends them all to some ranks of other nodes. Local rank l of a node
//          gets them from local rank l mod g of each other node, which has g ranks.
// wait:    waits for the messages of other nodes.
//
// A job with an AnnouncementExchange must not use the channels for exact elements, because announcements use one of
// them. In the node's memory they use the array for exact elements, in the order of jobs.
class AnnouncementExchange {
 public:
  AnnouncementExchange(int64_t rank, int64_t world_size);

  // All ranks give equal nodes between the same two exchanges. There is one level without memory, or if it is null.
  void set_nodes(std::shared_ptr<const node::FoundNodes> nodes);

  // Sets this rank's announcement and clears those of an earlier exchange. Call it before start.
  void set_own(const Announcement& own);

  void start(engine::Transport& transport);
  // Whether forward must be called, in a call of Job::advance before the one that calls wait.
  bool has_forward() const { return memory() != nullptr; }
  void forward(engine::Transport& transport);
  void wait(engine::Transport& transport);

  // The messages by rank, after wait. They are views into this object.
  std::vector<std::string_view> messages() const { return messages_in(slots_); }

  // As Job::give_up, before forward has returned.
  void give_up();

 private:
  static constexpr int64_t kChannel = engine::Transport::kChannels - 1;
  static constexpr int64_t kArray = node::NodeMemory::kArrays - 1;

  // The announcements of another node's ranks.
  struct OfNode {
    std::vector<int64_t> ranks;
    at::Tensor slots;  // uint8 [ranks, kAnnouncementBytes]
  };

  node::NodeMemory* memory() const { return nodes_ == nullptr ? nullptr : nodes_->memory.get(); }
  void start_in_node(engine::Transport& transport);
  void stage();
  at::Tensor staged(int64_t local_rank) const;

  const int64_t rank_;
  const int64_t world_size_;
  const at::Tensor slots_;  // uint8 [W, kAnnouncementBytes], by rank. In one level this rank sends its own slot.
  std::vector<int64_t> receives_;
  // With nodes:
  std::shared_ptr<const node::FoundNodes> nodes_;
  at::Tensor of_own_node_;  // uint8 [ranks of this node, kAnnouncementBytes]
  std::vector<OfNode> of_other_nodes_;
  node::SlotUse use_;
  bool is_staged_ = false;
  bool is_in_progress_ = false;  // Other ranks of the node wait for this one.
};

}  // namespace narrowcast::collectives
