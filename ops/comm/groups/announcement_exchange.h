// Announcements (agree.h) from peer to peer, in a job of the engine.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ops/comm/engine/engine.h"
#include "ops/comm/groups/agree.h"

namespace narrowcast::collectives {

// Each rank sends its announcement to all others, in a slot of kAnnouncementBytes. A job with an AnnouncementExchange
// must not use the channels for exact elements, because announcements use one of them.
class AnnouncementExchange {
 public:
  AnnouncementExchange(int64_t rank, int64_t world_size);

  // Sets this rank's announcement and clears those of an earlier exchange. Call it before start.
  void set_own(const Announcement& own);

  void start(engine::Transport& transport);
  void wait(engine::Transport& transport);

  // The messages by rank, after wait. They are views into this object.
  std::vector<std::string_view> messages() const { return messages_in(slots_); }

 private:
  static constexpr int64_t kChannel = engine::Transport::kChannels - 1;

  const int64_t rank_;
  const int64_t world_size_;
  const at::Tensor slots_;  // uint8 [W, kAnnouncementBytes], by rank. This rank sends its own slot.
  std::vector<int64_t> receives_;
};

}  // namespace narrowcast::collectives
