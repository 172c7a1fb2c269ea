// What fp16_compress and bf16_compress share.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <string_view>

#include <narrowcast/comm_hook.h>
#include <narrowcast/hook_options.h>
#include "hooks/per_bucket.h"

namespace narrowcast::hooks {

// Casts the bucket to a 16-bit type, divides by the world size in it, all-reduces
// in it, and copies the sum back into the bucket (PyTorch's _compress_hook).
class CompressHook final : public CommHook {
 public:
  struct Format {
    std::string_view name;
    at::ScalarType dtype;
  };
  CompressHook(const HookOptions& options, Format format) : group_(options.process_group), format_(format) {}

  std::string_view name() const override { return format_.name; }
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;

 private:
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const Format format_;
  PerBucket<at::Tensor> compressed_;
};

}  // namespace narrowcast::hooks
