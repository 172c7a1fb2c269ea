// A hook that watches another one, and what is checked with it alone: that hooks are told which bucket is the last.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/process_group.h>

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

// The outcome of the reference test's case of GradBucket::isLast.
struct IsLastResult {
  int64_t buckets = 0;  // in the second backward pass; one alone would prove nothing
  bool passed = false;  // there are several, and the flag is set for the final one only, on all ranks
};

// A collective: two backward passes through eleven bias-free Linear layers with a hook that notes the flags. The
// reference test has widths of 2 and 4000 and buckets of 25 MiB, which takes 2 GB of memory on every rank; here width
// and bucket size are scaled so that each wide layer still fills a bucket of its own.
IsLastResult check_is_last(const ProcessGroupPtr& group);

}  // namespace narrowcast::verification
