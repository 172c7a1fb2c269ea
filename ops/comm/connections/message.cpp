#include "ops/comm/connections/message.h"

#include <c10/util/StringUtil.h>

#include <cstring>
#include <stdexcept>

namespace narrowcast::connections {

bool Message::wait(std::chrono::milliseconds timeout) {
  const std::chrono::milliseconds limit = timeout == kNoTimeout ? waiting_->timeout() : timeout;
  std::unique_lock<std::mutex> lock(waiting_->mutex);
  const bool has_ended =
      changed_.wait_for(lock, limit, [this] { return is_aborted_ || is_complete_ || !failure_.empty(); });
  if (std::exchange(is_aborted_, false)) return false;
  if (!has_ended) {
    waiting_->close("Application timeout caused pair closure");
    throw std::runtime_error(c10::str("Timed out waiting ", limit.count(), "ms for ", name_, " operation to complete"));
  }
  if (!is_complete_) throw std::runtime_error(failure_);
  return true;
}

void Message::complete() {
  is_complete_ = true;
  memory.reset();
  receive.reset();
  changed_.notify_all();
}

void Message::fail(const std::string& why) {
  if (is_complete_ || !failure_.empty()) return;
  failure_ = why;
  memory.reset();
  if (receive != nullptr) std::exchange(receive, nullptr)->fail(why);
  changed_.notify_all();
}

void Message::hand_over() {
  if (receive->failure_.empty()) {
    std::memcpy(receive->memory.mutable_data_ptr(), memory.const_data_ptr(), memory.nbytes());
    receive->complete();
  }
  complete();
}

}  // namespace narrowcast::connections
