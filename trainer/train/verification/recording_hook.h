// A hook that watches another one.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string_view>
#include <vector>

#include <narrowcast/comm_hook.h>

namespace narrowcast::verification {

// A bucket as the hook was given it.
struct RecordedBucket {
  at::Tensor gradients;                // 1-D, a copy: this rank's own
  std::vector<at::Tensor> parameters;  // in the bucket's order
  std::vector<int64_t> offsets;        // of each parameter's gradient in `gradients`
  bool is_last = false;
};

// Hands every bucket to `inner` and keeps a copy of it.
class RecordingHook : public hooks::CommHook {
 public:
  explicit RecordingHook(std::unique_ptr<hooks::CommHook> inner);

  std::string_view name() const override { return inner_->name(); }
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  at::Tensor parseHookResult(const c10::IValue& result) override { return inner_->parseHookResult(result); }

  // The hook that is watched; it counts the payload.
  const hooks::CommHook& inner() const { return *inner_; }

  // The buckets since the last call, in the order in which they came.
  std::vector<RecordedBucket> take_buckets();

 private:
  std::unique_ptr<hooks::CommHook> inner_;
  std::vector<RecordedBucket> buckets_;
};

}  // namespace narrowcast::verification
