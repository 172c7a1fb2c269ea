#include "trainer/verification/hook_run/hook_run.h"

#include <ATen/ops/zeros_like.h>

#include <chrono>
#include <map>
#include <utility>

#include "trainer/ddp/distributed_data_parallel.h"
#include "trainer/device/device.h"
#include "trainer/process_group/network_errors.h"
#include "trainer/verification/hook_run/recording_hook.h"
#include "trainer/verification/tolerance/tolerance.h"

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

// This rank's terms of the bounds. A hook's depend on the buckets it was given.
std::vector<at::Tensor> bound_terms(const GradientProblem& problem, RecordingHook& recording) {
  std::map<at::TensorImpl*, at::Tensor> by_parameter;
  for (const RecordedBucket& bucket : recording.take_buckets()) {
    const at::Tensor bound =
        error_bound(std::string(recording.name()), bucket.gradients, problem.group->getSize(), problem.ddp.wire());
    for (size_t i = 0; i < bucket.parameters.size(); ++i) {
      const at::Tensor& parameter = bucket.parameters[i];
      by_parameter[parameter.unsafeGetTensorImpl()] =
          bound.narrow(0, bucket.offsets[i], parameter.numel()).view(parameter.sizes());
    }
  }
  std::vector<at::Tensor> terms;
  for (const at::Tensor& parameter : problem.model->parameters()) {
    terms.push_back(by_parameter.at(parameter.unsafeGetTensorImpl()).clone());
  }
  return terms;
}

std::vector<at::Tensor> bound_terms_without_hook(const GradientProblem& problem) {
  std::vector<at::Tensor> terms;
  for (const at::Tensor& gradient : local_gradients(problem)) {
    terms.push_back(error_bound("none", gradient.flatten(), problem.group->getSize()).view(gradient.sizes()));
  }
  return terms;
}

std::vector<at::Tensor> summed_over_ranks(const GradientProblem& problem, std::vector<at::Tensor> terms) {
  with_network_errors(problem.group->getRank(), "sum of the error bounds", [&] {
    for (at::Tensor& term : terms) {
      std::vector<at::Tensor> list = {term};
      problem.group->allreduce(list)->wait();
    }
  });
  return terms;
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
  Ddp ddp(problem.model, problem.group, DdpOptions(problem.ddp).hook("none"));
  RecordingHook* const recording = watch_hook(ddp, make_hook(hook));
  HookRun run;
  for (int pass = 0; pass < 2; ++pass) {
    run_pass(ddp, problem);
    PassResult result = {.gradients = copied_gradients(*problem.model), .bounds = {}};
    result.bounds = summed_over_ranks(
        problem, recording != nullptr ? bound_terms(problem, *recording) : bound_terms_without_hook(problem));
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
