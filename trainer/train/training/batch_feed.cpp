#include "trainer/train/training/batch_feed.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <utility>

namespace narrowcast::training {
namespace {

// Pinned memory is given back to its pool no sooner than the copy is done.
at::Tensor copied_through_pinned_memory(const at::Tensor& tensor, at::Device device) {
  return tensor.pin_memory().to(device, /*non_blocking=*/true);
}

}  // namespace

models::Batch on_device(const models::Batch& batch, at::Device device) {
  return {.inputs = batch.inputs.to(device), .targets = batch.targets.to(device)};
}

BatchFeed::BatchFeed(const data::Dataset& dataset, at::Device device) : dataset_(dataset), device_(device) {
  if (!device_.is_cpu()) {
    copies_ = c10::impl::VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_);
    copied_.emplace(device_.type());
  }
}

void BatchFeed::prepare(const std::vector<int64_t>& samples) {
  models::Batch batch = dataset_.training_batch(samples);
  if (copies_.has_value()) {
    const c10::StreamGuard on_copies(*copies_);
    batch = {.inputs = copied_through_pinned_memory(batch.inputs, device_),
             .targets = copied_through_pinned_memory(batch.targets, device_)};
    copied_->record(*copies_);
  }
  next_ = std::move(batch);
}

models::Batch BatchFeed::take() {
  TORCH_CHECK(next_.has_value(), "no batch was prepared");
  models::Batch batch = *std::exchange(next_, std::nullopt);
  if (copies_.has_value()) {
    const c10::Stream computing = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
    copied_->block(computing);
    batch.inputs.record_stream(computing);  // Their memory is the copying stream's.
    batch.targets.record_stream(computing);
  }
  return batch;
}

}  // namespace narrowcast::training
