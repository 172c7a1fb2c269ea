#include "hooks/compress.h"

#include <ATen/ops/empty_like.h>

#include <string>

#include "hooks/all_reduce.h"

namespace narrowcast::hooks {

c10::intrusive_ptr<c10::ivalue::Future> CompressHook::runHook(c10d::GradBucket& bucket) {
  const at::Tensor buffer = bucket.getBuffer();
  const at::Tensor compressed =
      compressed_.get(bucket, [&] { return at::empty_like(buffer, at::TensorOptions(format_.dtype)); });
  compressed.copy_(buffer);
  compressed.div_(group_->getSize());
  count_payload(ring_all_reduce_bytes(static_cast<int64_t>(compressed.nbytes()), group_->getSize()));
  return all_reduce_then(group_, compressed, std::string(name()), [buffer, compressed] {
    buffer.copy_(compressed);
    return buffer;
  });
}

}  // namespace narrowcast::hooks
