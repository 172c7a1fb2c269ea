#include "hooks/bucket_check.h"

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

namespace narrowcast::hooks {
namespace {

bool is_supported(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf || dtype == at::kBFloat16;
}

}  // namespace

void check_bucket(std::string_view hook, const c10d::GradBucket& bucket) {
  const at::Tensor& buffer = bucket.getBuffer();
  TORCH_CHECK_VALUE(buffer.device().is_cpu() || buffer.device().is_cuda(), hook, ": bucket ", bucket.getIndex(),
                    " must be on the CPU or a GPU, but is on ", buffer.device());
  TORCH_CHECK_TYPE(is_supported(buffer.scalar_type()), hook, ": bucket ", bucket.getIndex(),
                   " must be of type float, double, half or bfloat16, but is ", buffer.scalar_type());
  TORCH_CHECK_VALUE(buffer.layout() == at::kStrided && buffer.is_contiguous(), hook, ": bucket ", bucket.getIndex(),
                    " must be dense and contiguous, but has layout ", buffer.layout());
}

void check_completed(std::string_view hook, const c10d::GradBucket& bucket,
                     const c10::weak_intrusive_ptr<c10::ivalue::Future>& last) {
  const auto future = last.lock();
  TORCH_CHECK_VALUE(!future || future->completed(), hook, ": bucket ", bucket.getIndex(),
                    " was given again before its last future was completed");
}

}  // namespace narrowcast::hooks
