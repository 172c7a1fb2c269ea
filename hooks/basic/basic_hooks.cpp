#include "hooks/basic/basic_hooks.h"

#include <ATen/core/jit_type.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>

#include <utility>
#include <vector>

#include <narrowcast/wire_format.h>
#include "ops/common/backend_errors.h"

namespace narrowcast::hooks {
namespace {

// Gloo cannot add sparse tensors of float16. c10::TypeError naming `hook`, on all ranks.
void check_sparse(std::string_view hook, const at::Tensor& message) {
  TORCH_CHECK_TYPE(!message.is_sparse() || !message.is_cpu() || message.scalar_type() != at::kHalf, hook,
                   ": sparse gradients cannot be averaged as float16 on the CPU: create the module without sparse "
                   "gradients, or use the hook allreduce or bf16_compress");
}

// Bytes of an all-reduce of `message` over `group`. Each rank sends a sparse tensor's indices and values to all others.
ExchangedBytes all_reduced_bytes(const at::Tensor& message, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  if (message.is_sparse()) {
    const auto bytes = static_cast<int64_t>(message._indices().nbytes() + message._values().nbytes());
    return {.payload = bytes * (group->getSize() - 1), .message = bytes};
  }
  const auto bytes = static_cast<int64_t>(message.nbytes());
  return {.payload = ring_all_reduce_bytes(bytes, group->getSize()), .message = bytes};
}

class AllReduceHook final : public TableHook {
 public:
  AllReduceHook(const HookRow& row, const HookOptions& options) : TableHook(row), group_(options.process_group) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    const at::Tensor buffer = bucket.getBuffer();
    check_sparse(name(), buffer);
    buffer.div_(group_->getSize());
    count_exchange(bucket, all_reduced_bytes(buffer, group_));
    return all_reduce_then(group_, buffer, std::string(name()), [buffer] { return buffer; });
  }

 private:
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

// fp16_compress and bf16_compress: casts the bucket to a 16-bit type, divides by the world size in it, all-reduces
// in it, and copies the sum back into the bucket (PyTorch's _compress_hook).
class CastHook final : public TableHook {
 public:
  CastHook(const HookRow& row, const HookOptions& options, at::ScalarType dtype)
      : TableHook(row), group_(options.process_group), buckets_(dtype) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    return buckets_.run(bucket, [&](const at::Tensor& compressed) {
      check_sparse(name(), compressed);
      const at::Tensor buffer = bucket.getBuffer();
      compressed.div_(group_->getSize());
      count_exchange(bucket, all_reduced_bytes(compressed, group_));
      return all_reduce_then(group_, compressed, std::string(name()), [buffer, compressed] {
        buffer.copy_(compressed);
        return buffer;
      });
    });
  }

 private:
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  CastBuckets buckets_;
};

class NoopHook final : public TableHook {
 public:
  using TableHook::TableHook;

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    return completed_with(bucket.getBuffer());
  }
};

}  // namespace

std::unique_ptr<CommHook> make_allreduce_hook(const HookRow& row, const HookOptions& options) {
  return std::make_unique<AllReduceHook>(row, options);
}

at::ScalarType dtype_of(WireFormat format) {
  switch (format) {
    case WireFormat::kBf16:
      return at::kBFloat16;
    case WireFormat::kFp16:
      return at::kHalf;
    case WireFormat::kFp32:
      return at::kFloat;
    default:
      TORCH_CHECK_VALUE(false, "format: must be a format without blocks, but is ", to_string(format));
  }
}

CastBuckets::FuturePtr CastBuckets::run(const c10d::GradBucket& bucket,
                                        const std::function<FuturePtr(const at::Tensor& copy)>& exchange) {
  const at::Tensor buffer = bucket.getBuffer();
  Scratch& scratch = scratch_.get(bucket, [&] {
    return Scratch{at::empty_like(buffer, at::TensorOptions(dtype_)), {}};
  });
  scratch.last.wait();
  scratch.copy.copy_(buffer);
  return scratch.last.set(exchange(scratch.copy));
}

std::unique_ptr<CommHook> make_cast_hook(const HookRow& row, const HookOptions& options, WireFormat format) {
  return std::make_unique<CastHook>(row, options, dtype_of(format));
}

std::unique_ptr<CommHook> make_noop_hook(const HookRow& row, const HookOptions& /*options*/) {
  return std::make_unique<NoopHook>(row);
}

c10::intrusive_ptr<c10::ivalue::Future> completed_with(const at::Tensor& buffer) {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
  if (buffer.is_sparse()) {  // The future itself would look for storages in coalesced tensors only.
    future->markCompleted(
        buffer, std::vector<c10::ivalue::Future::WeakStorage>{buffer._indices().storage().getWeakStorageImpl(),
                                                              buffer._values().storage().getWeakStorageImpl()});
  } else {
    future->markCompleted(buffer);
  }
  return future;
}

c10::intrusive_ptr<c10::ivalue::Future> all_reduce_then(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                        const at::Tensor& tensor, std::string hook,
                                                        std::function<at::Tensor()> then) {
  std::vector<at::Tensor> tensors{tensor};
  const auto work = group->allreduce(tensors);
  return work->getFuture()->then(
      [rank = group->getRank(), hook = std::move(hook), then = std::move(then)](c10::ivalue::Future& done) {
        if (done.hasError()) rethrow_as_backend_error(done.exception_ptr(), rank, "all-reduce of hook " + hook);
        return c10::IValue(then());
      },
      c10::TensorType::get());
}

}  // namespace narrowcast::hooks
