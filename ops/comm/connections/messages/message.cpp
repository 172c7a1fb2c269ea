#include "ops/comm/connections/messages/message.h"

#include <c10/util/StringUtil.h>

#include <cstring>
#include <stdexcept>
#include <utility>

namespace narrowcast::connections {

bool Message::wait(std::chrono::milliseconds timeout) {
  const std::chrono::milliseconds limit = timeout == kNoTimeout ? waiting_->timeout() : timeout;
  std::unique_lock<std::mutex> lock(waiting_->mutex);
  const bool has_ended = changed_.wait_for(
      lock, limit, [this] { return is_aborted_ || (is_complete_ && !is_copying_) || !failure_.empty(); });
  if (std::exchange(is_aborted_, false)) return false;
  if (!has_ended) {
    waiting_->close("Application timeout caused pair closure");
    lock.unlock();
    waiting_->on_failure();
    throw std::runtime_error(c10::str("Timed out waiting ", limit.count(), "ms for ", name_, " operation to complete"));
  }
  if (!is_complete_) throw std::runtime_error(failure_);
  if (early_bytes_.defined()) copy_early(lock);
  return true;
}

// The sockets' thread needs the mutex, so that a large message is copied without it.
void Message::copy_early(std::unique_lock<std::mutex>& lock) {
  is_copying_ = true;
  {
    const at::Tensor from = std::exchange(early_bytes_, {});
    const at::Tensor to = std::exchange(memory, {});
    lock.unlock();
    std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
  }
  lock.lock();
  is_copying_ = false;
  changed_.notify_all();
}

void Message::complete() {
  is_complete_ = true;
  if (!early_bytes_.defined()) memory.reset();
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
    receive->early_bytes_ = memory;
    receive->complete();
  }
  complete();
}

}  // namespace narrowcast::connections
