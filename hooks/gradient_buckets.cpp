#include "hooks/gradient_buckets.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <c10/util/intrusive_ptr.h>

#include <optional>

namespace narrowcast::hooks {
namespace {

constexpr double kGradientSize = 1e-3;  // Standard deviation.

}  // namespace

GradientBuckets::GradientBuckets(int64_t numel, int64_t count, uint64_t seed)
    : gradients_(at::randn({numel}, at::detail::createCPUGenerator(seed)) * kGradientSize) {
  for (int64_t i = 0; i < count; ++i) {
    buffers_.push_back(at::empty_like(gradients_));
    parameters_.push_back(gradients_.view({1, numel}));  // Nobody reads it, but hooks may ask which it is.
  }
}

void GradientBuckets::fill() const {
  for (const at::Tensor& buffer : buffers_) {
    buffer.copy_(gradients_);
  }
}

void GradientBuckets::average(CommHook& hook) const {
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    auto bucket = this->bucket(i);
    futures.push_back(hook.runHook(bucket));
  }
  for (size_t i = 0; i < buffers_.size(); ++i) {
    futures[i]->waitAndThrow();
    const at::Tensor result = hook.parseHookResult(futures[i]->value());
    if (!result.is_alias_of(buffers_[i])) {
      buffers_[i].copy_(result);
    }
  }
}

c10d::GradBucket GradientBuckets::bucket(size_t i) const {
  const auto numel = static_cast<size_t>(gradients_.numel());
  return c10d::GradBucket(i, buffers_.size(), buffers_[i], {0}, {numel}, {parameters_[i].sizes()}, {parameters_[i]},
                          std::nullopt);
}

}  // namespace narrowcast::hooks
