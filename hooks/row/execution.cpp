#include "hooks/row/execution.h"

#include <ATen/core/jit_type.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>
#include <vector>

#include "ops/comm/groups/group.h"
#include "ops/common/per_group.h"

namespace narrowcast::hooks {

bool averages_on_gpus(const HookOptions& options) {
  return options.device ? *options.device == at::kCUDA
                        : collectives::moves_tensors_on(at::kCUDA, options.process_group);
}

CpuEngine::CpuEngine(const HookOptions& options) : group_(options.process_group) {
  if (!averages_on_gpus(options)) {
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
  const c10::Stream stream = on(device);
  c10::Event gradients_are_there(device.type());
  gradients_are_there.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  gradients_are_there.block(stream);
  const c10::StreamGuard on_this_stream(stream);
  bucket.record_stream(stream);  // The memory belongs to another stream and must not be reused before.
  auto future = c10::make_intrusive<Future>(c10::TensorType::get(), std::vector<c10::Device>{device});
  future->markCompleted(body());  // Records the point in the stream at which it is complete.
  return future;
}

c10::Stream HookStream::on(at::Device device) {
  if (!stream_.has_value() || stream_->device() != device) {
    stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  }
  return *stream_;
}

void HookStream::wait_for(HookStream& other, at::Device device) {
  if (device.is_cpu()) {
    return;
  }
  c10::Event event(device.type());
  event.record(other.on(device));
  event.block(on(device));
}

c10::intrusive_ptr<c10::ivalue::Future> HookStreams::run_alone(size_t place, const at::Tensor& bucket,
                                                               const std::function<at::Tensor()>& body) {
  HookStream& own = streams_.at(place);
  for (HookStream& other : streams_) {
    if (&other != &own) own.wait_for(other, bucket.device());
  }
  auto future = own.run(bucket, body);
  for (HookStream& other : streams_) {
    if (&other != &own) other.wait_for(own, bucket.device());
  }
  return future;
}

std::shared_ptr<HookTurns> HookTurns::of(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  static PerGroup<HookTurns> turns;
  return turns.of(group);
}

HookTurns::Future HookTurns::run(const CommHook& hook, const at::Tensor& bucket, const std::function<Future()>& run) {
  const at::Device device = bucket.device();
  if (device.is_cpu()) {
    return run();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  const c10::impl::VirtualGuardImpl guard(device.type());
  c10::OptionalStreamGuard on_own_stream;
  if (std::exchange(last_, &hook) != &hook && !last_buckets_.empty()) {
    if (!own_stream_ || own_stream_->device() != device) {
      own_stream_ = guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true);
    }
    c10::Event gradients_are_there(device.type());
    gradients_are_there.record(guard.getStream(device));
    gradients_are_there.block(*own_stream_);
    on_own_stream.reset_stream(*own_stream_);
    for (const LastExchange& last : last_buckets_) last.wait();  // Makes the stream wait, not the host.
    last_buckets_.clear();
    if (!bucket.is_sparse()) bucket.record_stream(*own_stream_);
  }
  LastExchange exchange;
  Future future = exchange.set(run());
  last_buckets_.push_back(std::move(exchange));
  if (last_buckets_.size() > HookStreams::kCount) last_buckets_.pop_front();
  return future;
}

}  // namespace narrowcast::hooks
