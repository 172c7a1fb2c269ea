#include "trainer/train/verification/hook_run.h"

#include <ATen/ops/zeros_like.h>

#include <chrono>
#include <utility>

#include <narrowcast/ddp.h>
#include "trainer/train/training/device.h"
#include "trainer/train/verification/pass_bounds.h"
#include "trainer/train/verification/recording_hook.h"

namespace narrowcast::verification {
namespace {

using Ddp = DistributedDataParallel<std::shared_ptr<models::Model>>;

void reset_gradients(const models::Model& model) {
  for (at::Tensor& parameter : model.parameters()) {
    parameter.mutable_grad().reset();
  }
}

std::vector<at::Tensor> copied_gradients(const models::Model& model) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : model.parameters()) {
    gradients.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::zeros_like(parameter).detach());
  }
  return gradients;
}

// One forward and backward pass; returns its seconds.
double run_pass(Ddp& ddp, const GradientProblem& problem) {
  reset_gradients(*problem.model);
  const at::Device device = problem.batch.inputs.device();
  wait_for_device(device);
  const auto began = std::chrono::steady_clock::now();
  ddp.backward(ddp.forward(problem.batch));
  wait_for_device(device);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

// Without a hook nothing depends on the buckets: each parameter may as well be one.
std::vector<RecordedBucket> buckets_without_hook(const GradientProblem& problem) {
  const std::vector<at::Tensor> gradients = local_gradients(problem);
  const std::vector<at::Tensor> parameters = problem.model->parameters();
  std::vector<RecordedBucket> buckets;
  for (size_t i = 0; i < parameters.size(); ++i) {
    buckets.push_back({.gradients = gradients[i].flatten(), .parameters = {parameters[i]}, .offsets = {0}});
  }
  return buckets;
}

// Registers the hook with a recorder around it, which `ddp` owns; nullptr if there is no hook.
RecordingHook* watch_hook(Ddp& ddp, std::unique_ptr<hooks::CommHook> hook) {
  if (hook == nullptr) {
    return nullptr;
  }
  auto recording = std::make_unique<RecordingHook>(std::move(hook));
  RecordingHook* const watched = recording.get();
  ddp.register_comm_hook(std::move(recording));
  return watched;
}

}  // namespace

std::vector<at::Tensor> local_gradients(const GradientProblem& problem) {
  reset_gradients(*problem.model);
  problem.model->forward(problem.batch).backward();
  std::vector<at::Tensor> gradients = copied_gradients(*problem.model);
  reset_gradients(*problem.model);
  return gradients;
}

HookRun run_hook(const GradientProblem& problem, const std::string& hook, const HookFactory& make_hook) {
  Ddp ddp(problem.model, problem.group, problem.ddp.with_hook("none"));
  RecordingHook* const recording = watch_hook(ddp, make_hook(hook));
  PassBounds bounds(problem.group, problem.ddp.with_hook(hook));
  HookRun run;
  for (int pass = 0; pass < 2; ++pass) {
    run_pass(ddp, problem);
    PassResult result = {.gradients = copied_gradients(*problem.model), .bounds = {}};
    result.bounds = bounds.of_pass(recording != nullptr ? recording->take_buckets() : buckets_without_hook(problem),
                                   problem.model->parameters());
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

}  // namespace narrowcast::verification
