#include "hooks/quantized/gathered_mean_hook.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <utility>

namespace narrowcast::hooks {
namespace {

bool is_supported(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf || dtype == at::kBFloat16;
}

}  // namespace

GatheredMeanHook::GatheredMeanHook(const HookOptions& options, Format format)
    : format_(format), group_(options.process_group), engine_(engine::Engine::for_group(options.process_group)) {}

c10::intrusive_ptr<c10::ivalue::Future> GatheredMeanHook::runHook(c10d::GradBucket& bucket) {
  check(bucket);
  Scratch& scratch = scratch_.get(bucket, [&] { return make_scratch(bucket); });
  check_not_in_flight(bucket, scratch);
  scratch.exchange->set_bucket(bucket.getBuffer());
  count_payload(scratch.exchange->payload_bytes());
  auto future = engine_->submit(scratch.exchange);
  scratch.last = future;
  return future;
}

GatheredMeanHook::Scratch GatheredMeanHook::make_scratch(const c10d::GradBucket& bucket) const {
  MeanExchangeOptions options{c10::str(name(), " of bucket ", bucket.getIndex()), group_->getRank(), group_->getSize(),
                              bucket.getBuffer().numel()};
  return {std::make_shared<MeanExchange>(format_.make_codec(), std::move(options)),
          c10::weak_intrusive_ptr<c10::ivalue::Future>(c10::intrusive_ptr<c10::ivalue::Future>())};
}

void GatheredMeanHook::check(const c10d::GradBucket& bucket) const {
  const at::Tensor& buffer = bucket.getBuffer();
  TORCH_CHECK_VALUE(buffer.device().is_cpu(), name(), ": bucket ", bucket.getIndex(), " must be on the CPU, but is on ",
                    buffer.device());
  TORCH_CHECK_TYPE(is_supported(buffer.scalar_type()), name(), ": bucket ", bucket.getIndex(),
                   " must be of type float, double, half or bfloat16, but is ", buffer.scalar_type());
  TORCH_CHECK_VALUE(buffer.layout() == at::kStrided && buffer.is_contiguous(), name(), ": bucket ", bucket.getIndex(),
                    " must be dense and contiguous, but has layout ", buffer.layout());
}

void GatheredMeanHook::check_not_in_flight(const c10d::GradBucket& bucket, const Scratch& scratch) const {
  const auto last = scratch.last.lock();
  TORCH_CHECK_VALUE(!last || last->completed(), name(), ": bucket ", bucket.getIndex(),
                    " was given again before its last future was completed");
}

}  // namespace narrowcast::hooks
