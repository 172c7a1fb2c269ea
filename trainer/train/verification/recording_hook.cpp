#include "trainer/train/verification/recording_hook.h"

#include <ATen/ops/randn.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/ddp.h>
#include <narrowcast/hooks.h>

namespace narrowcast::verification {
namespace {

constexpr int64_t kWidth = 512;   // A layer of 512 * 512 floats is 1 MiB,
constexpr double kBucketMiB = 1;  // exactly a bucket.
constexpr int64_t kWideLayers = 10;

struct Chain : torch::nn::Module {
  Chain() {
    for (int64_t i = 0; i <= kWideLayers; ++i) {
      const auto options = torch::nn::LinearOptions(i == 0 ? 2 : kWidth, kWidth).bias(false);
      layers.push_back(register_module(std::to_string(i), torch::nn::Linear(options)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) {
      x = layer->forward(x);
    }
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};

bool only_last_is_marked(const std::vector<RecordedBucket>& buckets) {
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (buckets[i].is_last != (i + 1 == buckets.size())) {
      return false;
    }
  }
  return !buckets.empty();
}

}  // namespace

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

IsLastResult check_is_last(const ProcessGroupPtr& group) {
  auto hook = std::make_unique<RecordingHook>(hooks::create_comm_hook("noop", {.process_group = group}));
  RecordingHook& recording = *hook;
  DistributedDataParallel ddp(std::make_shared<Chain>(), group, DdpOptions().bucket_cap_mb(kBucketMiB));
  ddp.register_comm_hook(std::move(hook));
  IsLastResult result;
  bool mine = true;
  for (int pass = 0; pass < 2; ++pass) {  // The Reducer makes several buckets of the first one for the second pass.
    ddp.zero_grad();
    ddp.backward(ddp.forward(at::randn({10, 2})).sum());
    const std::vector<RecordedBucket> buckets = recording.take_buckets();
    result.buckets = static_cast<int64_t>(buckets.size());
    mine = mine && only_last_is_marked(buckets);
  }
  mine = mine && result.buckets > 1;
  result.passed = all_reduce_max(group, {mine ? 0.0 : 1.0})[0] == 0;
  return result;
}

}  // namespace narrowcast::verification
