#include "ops/comm/groups/announcement_exchange.h"

#include <ATen/ops/zeros.h>

namespace narrowcast::collectives {

AnnouncementExchange::AnnouncementExchange(int64_t rank, int64_t world_size)
    : rank_(rank), world_size_(world_size), slots_(at::zeros({world_size, kAnnouncementBytes}, at::kByte)) {}

void AnnouncementExchange::set_own(const Announcement& own) {
  slots_.zero_();
  slots_[rank_].copy_(slot_of(own));
}

void AnnouncementExchange::start(engine::Transport& transport) {
  receives_.clear();
  for (int64_t distance = 1; distance < world_size_; ++distance) {
    const int64_t peer = transport.peer_before(distance);
    receives_.push_back(transport.post_receive({slots_[peer], peer, kChannel}));
  }
  for (int64_t distance = 1; distance < world_size_; ++distance) {
    transport.send({slots_[rank_], transport.peer_after(distance), kChannel});
  }
}

void AnnouncementExchange::wait(engine::Transport& transport) {
  for (const int64_t receive : receives_) {
    transport.wait_receive(receive);
  }
}

}  // namespace narrowcast::collectives
