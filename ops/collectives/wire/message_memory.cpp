#include "ops/collectives/wire/message_memory.h"

#include <algorithm>

#include "ops/engine/message_buffer.h"

namespace narrowcast::collectives {
namespace {

constexpr int64_t kAlignment = 64;

}  // namespace

MessageMemory::Buffer MessageMemory::take(int64_t bytes) {
  const size_t place = next_;
  next_ = (next_ + 1) % in_flight_;
  largest_ = std::max(largest_, bytes);
  at::Tensor& buffer = buffers_[place];
  if (!buffer.defined() || buffer.numel() < bytes) {
    buffer.reset();  // Before the new one is allocated.
    buffer = engine::allocate_message_buffer(largest_);
  }
  return {place, buffer};
}

size_t MessageLayout::add(int64_t bytes) {
  messages_.push_back({total_, bytes});
  total_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return messages_.size() - 1;
}

const std::vector<at::Tensor>& MessageLayout::place_in(const MessageMemory::Buffer& buffer) {
  Views& views = views_[buffer.place];
  if (!views.buffer.is_same(buffer.bytes)) {
    views.messages.clear();
    for (const Message& message : messages_) {
      views.messages.push_back(buffer.bytes.narrow(0, message.begin, message.bytes));
    }
    views.buffer = buffer.bytes;
  }
  return views.messages;
}

}  // namespace narrowcast::collectives
