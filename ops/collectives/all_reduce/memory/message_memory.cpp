#include "ops/collectives/all_reduce/memory/message_memory.h"

#include <ATen/ops/empty.h>
#include <sys/mman.h>

#include <algorithm>
#include <mutex>

#include "ops/common/per_group.h"

namespace narrowcast::collectives {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kHugePage = int64_t{2} << 20;

struct Shared {
  std::mutex mutex;
  std::weak_ptr<MessageMemory> memory;
};

}  // namespace

at::Tensor allocate_message_buffer(int64_t bytes) {
  if (bytes < kHugePage) return at::empty({bytes}, at::kByte);
  const at::Tensor memory = at::empty({bytes + kHugePage}, at::kByte);
  const auto address = reinterpret_cast<intptr_t>(memory.mutable_data_ptr());
  const int64_t offset = (kHugePage - address % kHugePage) % kHugePage;
  const at::Tensor buffer = memory.narrow(0, offset, bytes);
  // Only advice to the kernel: it affects speed, not results.
  static_cast<void>(::madvise(buffer.mutable_data_ptr(), static_cast<size_t>(bytes), MADV_HUGEPAGE));
  return buffer;
}

std::shared_ptr<MessageMemory> MessageMemory::of(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  static PerGroup<Shared> all;
  const std::shared_ptr<Shared> shared = all.of(group);
  const std::lock_guard<std::mutex> lock(shared->mutex);
  std::shared_ptr<MessageMemory> memory = shared->memory.lock();
  if (memory == nullptr) {
    memory = std::make_shared<MessageMemory>();
    shared->memory = memory;
  }
  return memory;
}

MessageMemory::Buffer MessageMemory::take(int64_t bytes, size_t in_flight) {
  const size_t count = std::min({users_, in_flight, kMostBuffers});
  const size_t place = next_ % count;
  next_ = (place + 1) % count;
  largest_ = std::max(largest_, bytes);
  at::Tensor& buffer = buffers_[place];
  if (!buffer.defined() || buffer.numel() < bytes) {
    buffer.reset();  // Frees the old buffer before the new one is allocated.
    buffer = allocate_message_buffer(largest_);
  }
  return {place, buffer};
}

size_t MessageOffsets::add(int64_t bytes) {
  messages_.push_back({total_, bytes});
  total_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return messages_.size() - 1;
}

const std::vector<at::Tensor>& MessageOffsets::place_in(MessageMemory& memory, size_t in_flight) {
  const MessageMemory::Buffer buffer = memory.take(total_, in_flight);
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
