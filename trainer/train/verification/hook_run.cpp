#include "trainer/train/verification/hook_run.h"

#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/ddp.h>
#include <narrowcast/hooks.h>
#include "hooks/row/bucket.h"
#include "hooks/row/levels.h"
#include "hooks/table/hook_table.h"
#include "ops/collectives/all_reduce/algorithms/two_levels.h"
#include "ops/collectives/all_reduce/array/element_order.h"
#include "trainer/train/optimization/device.h"
#include "trainer/train/optimization/optimizer.h"
#include "trainer/train/training/evaluation.h"

namespace narrowcast::verification {
namespace {

using Ddp = DistributedDataParallel<std::shared_ptr<models::Model>>;

constexpr const char* kSumOfBounds = "sum of the error bounds";  // the step's name, in errors

void reset_gradients(const models::Model& model) {
  for (at::Tensor& parameter : model.parameters()) {
    parameter.mutable_grad().reset();
  }
}

std::vector<at::Tensor> copied_gradients(const models::Model& model) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : training::trained_parameters(model)) {
    gradients.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::zeros_like(parameter).detach());
  }
  return gradients;
}

// One forward and backward pass; returns its seconds. All passes draw the same random numbers, for dropout.
double run_pass(Ddp& ddp, const GradientProblem& problem) {
  reset_gradients(*problem.model);
  const at::Device device = problem.batch.inputs.device();
  double seconds = 0;
  training::on_trial(*problem.model, [&] {
    training::wait_for_device(device);
    const auto began = std::chrono::steady_clock::now();
    const at::Tensor loss = ddp.forward(problem.batch);
    problem.weight ? ddp.backward(loss, *problem.weight) : ddp.backward(loss);
    training::wait_for_device(device);
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  });
  return seconds;
}

// Without a hook nothing depends on the buckets, so each parameter is one bucket.
std::vector<RecordedBucket> buckets_without_hook(const GradientProblem& problem) {
  const std::vector<at::Tensor> gradients = local_gradients(problem);
  const std::vector<at::Tensor> parameters = training::trained_parameters(*problem.model);
  std::vector<RecordedBucket> buckets;
  for (size_t i = 0; i < parameters.size(); ++i) {
    buckets.push_back({.gradients = gradients[i].flatten(), .parameters = {parameters[i]}, .offsets = {0}});
  }
  return buckets;
}

// Registers the hook inside a recorder, which `ddp` owns; nullptr without a hook.
RecordingHook* watch_hook(Ddp& ddp, std::unique_ptr<hooks::CommHook> hook) {
  if (hook == nullptr) {
    return nullptr;
  }
  auto recording = std::make_unique<RecordingHook>(std::move(hook));
  RecordingHook* const watched = recording.get();
  ddp.register_comm_hook(std::move(recording));
  return watched;
}

// The part of `values`, one value per element of the bucket, that belongs to parameter number i.
at::Tensor part(const at::Tensor& values, const RecordedBucket& bucket, size_t i) {
  return values.narrow(0, bucket.offsets[i], bucket.parameters[i].numel());
}

// bool [numel]: whether an element's parameter has at most one dimension.
at::Tensor one_dimensional_elements(const RecordedBucket& bucket) {
  at::Tensor elements = at::zeros_like(bucket.gradients, at::kBool);
  for (size_t i = 0; i < bucket.parameters.size(); ++i) {
    part(elements, bucket, i).fill_(hooks::is_one_dimensional(bucket.parameters[i]));
  }
  return elements;
}

}  // namespace

std::vector<at::Tensor> local_gradients(const GradientProblem& problem) {
  reset_gradients(*problem.model);
  const double factor = problem.weight ? *problem.weight * static_cast<double>(problem.group->getSize()) : 1;
  training::on_trial(*problem.model, [&] { problem.model->forward(problem.batch).mul(factor).backward(); });
  std::vector<at::Tensor> gradients = copied_gradients(*problem.model);
  reset_gradients(*problem.model);
  return gradients;
}

HookRun run_hook(const GradientProblem& problem, const HookFactory& make_hook) {
  Ddp ddp(problem.model, problem.group, problem.ddp.with_hook(hooks::kNoHook));
  RecordingHook* const recording = watch_hook(ddp, make_hook(problem.ddp));
  PassBounds bounds(problem.group, problem.ddp);
  HookRun run;
  for (int pass = 0; pass < 2; ++pass) {
    run_pass(ddp, problem);
    PassResult result = {.gradients = copied_gradients(*problem.model), .bounds = {}};
    result.bounds = bounds.of_pass(recording != nullptr ? recording->take_buckets() : buckets_without_hook(problem),
                                   training::trained_parameters(*problem.model));
    run.passes.push_back(std::move(result));
  }
  const auto payload = [&] {
    return recording != nullptr ? recording->inner().payload_bytes_sent() : ddp.payload_bytes_sent();
  };
  const int64_t sent_before = payload();
  run.seconds = run_pass(ddp, problem);
  run.payload_bytes_sent = payload() - sent_before;
  reset_gradients(*problem.model);
  return run;
}

std::vector<at::Tensor> PassBounds::of_pass(const std::vector<RecordedBucket>& buckets,
                                            const std::vector<at::Tensor>& parameters) {
  const hooks::HookRow& hook = hooks::hook_row(ddp_.hook());
  const hooks::HookOptions options = ddp_.hook_options(group_);
  ByParameter bounds;
  for (const RecordedBucket& bucket : buckets) {
    hooks::SentBucket sent = {.gradients = bucket.gradients,
                              .residual = gathered(bucket, residuals_),
                              .sum_over_ranks = [this](const at::Tensor& term) {
                                return training::sum_over_ranks(group_, term.clone(), kSumOfBounds);
                              }};
    if (ddp_.wire().exempt_one_dimensional) {
      sent.exempt = one_dimensional_elements(bucket);
    }
    hooks::ErrorTerms terms = hook.error_terms(sent, hooks::expected_layout(ddp_.wire(), group_->getSize()), options);
    if (ddp_.wire().error_feedback) {
      terms.float32 += gathered(bucket, float32_);
      scatter(terms.float32, bucket, float32_);
      scatter(residual_after(terms), bucket, residuals_);
    }
    scatter(training::sum_over_ranks(group_, terms.sum(), kSumOfBounds), bucket, bounds);
  }
  std::vector<at::Tensor> result;
  for (const at::Tensor& parameter : parameters) {
    result.push_back(bounds.at(parameter.unsafeGetTensorImpl()).view(parameter.sizes()));
  }
  return result;
}

// One number per element of the bucket: 0 for elements of parameters without an entry.
at::Tensor PassBounds::gathered(const RecordedBucket& bucket, const ByParameter& values) {
  at::Tensor result = at::zeros_like(bucket.gradients, at::kDouble);
  for (size_t i = 0; i < bucket.parameters.size(); ++i) {
    const auto found = values.find(bucket.parameters[i].unsafeGetTensorImpl());
    if (found != values.end()) {
      part(result, bucket, i).copy_(found->second);
    }
  }
  return result;
}

void PassBounds::scatter(const at::Tensor& values, const RecordedBucket& bucket, ByParameter& by_parameter) {
  for (size_t i = 0; i < bucket.parameters.size(); ++i) {
    by_parameter[bucket.parameters[i].unsafeGetTensorImpl()] = part(values, bucket, i).clone();
  }
}

// The rank that sends a mean keeps its rounding error. When the buckets are rebuilt, this becomes a residual of the
// rank's own gradients, times the number of ranks. The bound treats it so in every case, which is no smaller: otherwise
// it becomes part of the mean again.
at::Tensor PassBounds::residual_after(const hooks::ErrorTerms& terms) const {
  const int64_t world_size = group_->getSize();
  const auto layout = hooks::expected_layout(ddp_.wire(), world_size);
  const int64_t numel = terms.first_hop.numel();
  const auto shard = collectives::sent_parts(layout, group_->getRank(), numel).mean;
  const WireFormat format =
      hooks::filled_in(hooks::hook_row(ddp_.hook()), ddp_.hook_options(group_)).wire.format.value_or(WireFormat::kFp32);
  const auto order = collectives::ElementOrder::of(format, numel);
  const at::Tensor of_mean = training::sum_over_ranks(group_, terms.second_hop * world_size, kSumOfBounds);
  at::Tensor residual = terms.first_hop * world_size;
  order.add(order.take(of_mean, shard), 1, shard, residual);
  return residual;
}

namespace {

constexpr int64_t kWidth = 512;   // A layer of 512 * 512 floats is 1 MiB,
constexpr double kBucketMiB = 1;  // exactly one bucket.
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
  auto hook =
      std::make_unique<RecordingHook>(hooks::create_comm_hook(hooks::kNoExchangeHook, {.process_group = group}));
  RecordingHook& recording = *hook;
  DistributedDataParallel ddp(std::make_shared<Chain>(), group, DdpOptions().bucket_cap_mb(kBucketMiB));
  ddp.register_comm_hook(std::move(hook));
  IsLastResult result;
  bool mine = true;
  for (int pass = 0; pass < 2; ++pass) {  // For the second pass the Reducer splits the first bucket into several.
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
