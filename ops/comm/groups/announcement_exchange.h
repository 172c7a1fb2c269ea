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

// Each rank sends its announcement to all others, in a slot of kAnnouncementBytes. A job that has one does not use the
// exact elements' channels, of which the announcements' is one.
class AnnouncementExchange {
 public:
  AnnouncementExchange(int64_t rank, int64_t world_size);

  // Before start. Forgets those of an earlier exchange.
  void set_own(const Announcement& own);

  void start(engine::Transport& transport);
  void wait(engine::Transport& transport);

  // By rank, after wait; kept here.
  std::vector<std::string_view> messages() const { return messages_in(slots_); }

 private:
  static constexpr int64_t kChannel = engine::Transport::kChannels - 1;

  const int64_t rank_;
  const int64_t world_size_;
  const at::Tensor slots_;  // uint8 [W, kAnnouncementBytes], by rank. This rank's own is what it sends.
  std::vector<int64_t> receives_;
};

}  // namespace narrowcast::collectives
