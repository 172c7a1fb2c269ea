#include "hooks/allreduce.h"

#include <string>

#include "hooks/all_reduce.h"

namespace narrowcast::hooks {
namespace {

class AllReduceHook final : public CommHook {
 public:
  explicit AllReduceHook(const HookOptions& options) : group_(options.process_group) {}

  std::string_view name() const override { return "allreduce"; }

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    const at::Tensor buffer = bucket.getBuffer();
    buffer.div_(group_->getSize());
    count_payload(ring_all_reduce_bytes(static_cast<int64_t>(buffer.nbytes()), group_->getSize()));
    return all_reduce_then(group_, buffer, std::string(name()), [buffer] { return buffer; });
  }

 private:
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

}  // namespace

std::unique_ptr<CommHook> make_allreduce_hook(const HookOptions& options) {
  return std::make_unique<AllReduceHook>(options);
}

}  // namespace narrowcast::hooks
