#include "hooks/execution.h"

#include <ATen/core/jit_type.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>
#include <vector>

#include "ops/collectives/group.h"

namespace narrowcast::hooks {

CpuEngine::CpuEngine(c10::intrusive_ptr<c10d::ProcessGroup> group) : group_(std::move(group)) {
  if (!collectives::moves_tensors_on(at::kCUDA, group_)) {
    get();
  }
}

engine::Engine& CpuEngine::get() {
  if (engine_ == nullptr) {
    engine_ = engine::Engine::for_group(group_);
  }
  return *engine_;
}

c10::intrusive_ptr<c10::ivalue::Future> HookStream::run(const at::Tensor& bucket,
                                                        const std::function<at::Tensor()>& body) {
  using c10::ivalue::Future;
  const at::Device device = bucket.device();
  if (device.is_cpu()) {
    auto future = c10::make_intrusive<Future>(c10::TensorType::get());
    future->markCompleted(body());
    return future;
  }
  const c10::impl::VirtualGuardImpl implementation(device.type());
  if (!stream_.has_value() || stream_->device() != device) {
    stream_ = implementation.getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  }
  c10::Event gradients_are_there(device.type());
  gradients_are_there.record(implementation.getStream(device));
  gradients_are_there.block(*stream_);
  const c10::StreamGuard on_this_stream(*stream_);
  bucket.record_stream(*stream_);  // Its memory is of another stream, and must not be given away before.
  auto future = c10::make_intrusive<Future>(c10::TensorType::get(), std::vector<c10::Device>{device});
  future->markCompleted(body());  // Records where in the stream it is complete.
  return future;
}

}  // namespace narrowcast::hooks
