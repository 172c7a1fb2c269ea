#include "hooks/noop.h"

#include <ATen/core/jit_type.h>

namespace narrowcast::hooks {
namespace {

class NoopHook final : public CommHook {
 public:
  std::string_view name() const override { return "noop"; }
  bool keeps_replicas_equal() const override { return false; }

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
    future->markCompleted(bucket.getBuffer());
    return future;
  }
};

}  // namespace

std::unique_ptr<CommHook> make_noop_hook(const HookOptions& /*options*/) { return std::make_unique<NoopHook>(); }

}  // namespace narrowcast::hooks
