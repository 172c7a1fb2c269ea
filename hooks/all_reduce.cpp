#include "hooks/all_reduce.h"

#include <ATen/core/jit_type.h>

#include <utility>
#include <vector>

#include "ops/backend_errors.h"

namespace narrowcast::hooks {

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
