#include "trainer/train/verification/recording_hook.h"

#include <utility>

namespace narrowcast::verification {

RecordingHook::RecordingHook(std::unique_ptr<hooks::CommHook> inner) : inner_(std::move(inner)) {}

c10::intrusive_ptr<c10::ivalue::Future> RecordingHook::runHook(c10d::GradBucket& bucket) {
  RecordedBucket recorded;
  recorded.gradients = bucket.getBufferRef().detach().clone();
  recorded.parameters = bucket.getParameters();
  recorded.is_last = bucket.isLast();
  for (const at::Tensor& gradient : bucket.getGradients()) {
    recorded.offsets.push_back(gradient.storage_offset() - bucket.getBufferRef().storage_offset());
  }
  buckets_.push_back(std::move(recorded));
  return inner_->runHook(bucket);
}

std::vector<RecordedBucket> RecordingHook::take_buckets() { return std::exchange(buckets_, {}); }

}  // namespace narrowcast::verification
