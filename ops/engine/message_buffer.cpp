#include "ops/engine/message_buffer.h"

#include <ATen/ops/empty.h>
#include <sys/mman.h>

namespace narrowcast::engine {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

}  // namespace

at::Tensor allocate_message_buffer(int64_t bytes) {
  if (bytes < kHugePage) return at::empty({bytes}, at::kByte);
  const at::Tensor memory = at::empty({bytes + kHugePage}, at::kByte);
  const auto address = reinterpret_cast<intptr_t>(memory.mutable_data_ptr());
  const int64_t offset = (kHugePage - address % kHugePage) % kHugePage;
  const at::Tensor buffer = memory.narrow(0, offset, bytes);
  // Only advice: whether the kernel takes it changes nothing but time.
  static_cast<void>(::madvise(buffer.mutable_data_ptr(), static_cast<size_t>(bytes), MADV_HUGEPAGE));
  return buffer;
}

}  // namespace narrowcast::engine
