#include "hooks/all_reduce.h"

#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>

#include <utility>
#include <vector>

#include "ops/error_message.h"

namespace narrowcast::hooks {
namespace {

void rethrow_as_backend_error(const c10::ivalue::Future& done, int64_t rank, const std::string& hook) {
  if (!done.hasError()) return;
  try {
    std::rethrow_exception(done.exception_ptr());
  } catch (const std::exception& error) {
    TORCH_CHECK_WITH(DistBackendError, false, "rank ", rank, ": all-reduce of hook ", hook,
                     " failed: ", error_message(error));
  }
}

}  // namespace

c10::intrusive_ptr<c10::ivalue::Future> all_reduce_then(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                        const at::Tensor& tensor, std::string hook,
                                                        std::function<at::Tensor()> then) {
  std::vector<at::Tensor> tensors{tensor};
  const auto work = group->allreduce(tensors);
  return work->getFuture()->then(
      [rank = group->getRank(), hook = std::move(hook), then = std::move(then)](c10::ivalue::Future& done) {
        rethrow_as_backend_error(done, rank, hook);
        return c10::IValue(then());
      },
      c10::TensorType::get());
}

}  // namespace narrowcast::hooks
