// PyTorch's plain hooks: LibTorch's all-reduce in the bucket's type or a narrower one, and a hook that sends nothing.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>
#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <narrowcast/comm_hook.h>
#include <narrowcast/hook_options.h>
#include "hooks/row/bucket.h"
#include "hooks/row/hook_row.h"

namespace narrowcast::hooks {

// "allreduce": divides the bucket by the world size, then all-reduces it (PyTorch's allreduce_hook).
std::unique_ptr<CommHook> make_allreduce_hook(const HookRow& row, const HookOptions& options);

// The dtype of a format without blocks. c10::ValueError for a format with blocks.
at::ScalarType dtype_of(WireFormat format);

// Copies of buckets in a narrower dtype, kept from step to step.
class CastBuckets {
 public:
  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

  explicit CastBuckets(at::ScalarType dtype) : dtype_(dtype) {}

  at::ScalarType dtype() const { return dtype_; }

  // Copies the bucket, and returns the future of exchange(copy), which may use the copy until it is completed. Waits
  // for the last exchange of this bucket first.
  FuturePtr run(const c10d::GradBucket& bucket, const std::function<FuturePtr(const at::Tensor& copy)>& exchange);

 private:
  struct Scratch {
    at::Tensor copy;
    LastExchange last;
  };
  const at::ScalarType dtype_;
  PerBucket<Scratch> scratch_;
};

// "fp16_compress" and "bf16_compress": average the bucket in `format`, IEEE half precision or bfloat16 (PyTorch's
// fp16_compress_hook and bf16_compress_hook).
std::unique_ptr<CommHook> make_cast_hook(const HookRow& row, const HookOptions& options, WireFormat format);

// "noop": sends nothing and keeps each rank's own gradient, to measure the cost of communication (PyTorch's noop_hook).
std::unique_ptr<CommHook> make_noop_hook(const HookRow& row, const HookOptions& options);

// A future of the bucket as it is, dense or sparse.
c10::intrusive_ptr<c10::ivalue::Future> completed_with(const at::Tensor& buffer);

// Issues the all-reduce (sum, in place) of `tensor` at once, on the calling thread, so that the ranks' collectives stay
// in order. When it is done, `then` runs and returns the future's value; it must not block. If the collective fails,
// the future holds a c10::DistBackendError that names this rank and `hook`.
c10::intrusive_ptr<c10::ivalue::Future> all_reduce_then(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                        const at::Tensor& tensor, std::string hook,
                                                        std::function<at::Tensor()> then);

}  // namespace narrowcast::hooks
