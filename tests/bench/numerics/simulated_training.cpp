#include "tests/bench/numerics/simulated_training.h"

#include <ATen/ATen.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <utility>

#include <narrowcast/learning_rate.h>
#include <narrowcast/module_state.h>
#include "trainer/ddp/optimization/gradients.h"
#include "trainer/ddp/reducer/block_alignment.h"
#include "trainer/train/data/dataset.h"
#include "trainer/train/optimization/device.h"
#include "trainer/train/optimization/optimizer.h"
#include "trainer/train/training/training_options.h"

namespace narrowcast::bench {
namespace {

// [parameters] float32: the gradients one after another.
at::Tensor flat_gradients(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& parameter : parameters) flat.push_back(parameter.grad().reshape({-1}));
  return at::cat(flat);
}

void set_gradients(const std::vector<at::Tensor>& parameters, const at::Tensor& flat) {
  int64_t begin = 0;
  for (const at::Tensor& parameter : parameters) {
    parameter.mutable_grad() = flat.narrow(0, begin, parameter.numel()).view(parameter.sizes());
    begin += parameter.numel();
  }
}

void reset_gradients(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
}

// The mean loss of evenly spaced samples.
double mean_loss(models::Model& model, const data::Dataset& dataset, bool held_out, at::Device device) {
  constexpr int64_t kSamples = 512;
  const at::NoGradGuard no_grad;
  model.eval();
  const int64_t size = held_out ? dataset.held_out_size() : dataset.training_size();
  const int64_t count = std::min(kSamples, size);
  std::vector<int64_t> indices(count);
  for (int64_t i = 0; i < count; ++i) indices[i] = i * size / count;
  const models::Batch batch = held_out ? dataset.held_out_batch(indices) : dataset.training_batch(indices);
  return model.forward(training::on_device(batch, device)).item<double>();
}

job::TrainJob make_job(const SimulationOptions& options) {
  job::TrainJob job;
  job.data = options.data;
  job.seed = options.seed;
  job.model = options.model;
  job.model_options = options.model_options;
  return job;
}

// Parameters in the order of their bucket: gradients become ready from the last parameter on.
std::vector<NamedTensor> in_bucket(std::vector<NamedTensor> parameters, bool aligned) {
  std::ranges::reverse(parameters);
  if (!aligned) return parameters;
  BucketIndices bucket(1);
  for (size_t i = 0; i < parameters.size(); ++i) bucket[0].push_back(i);
  bucket = aligned_to_blocks(std::move(bucket), tensors_of(parameters));
  std::vector<NamedTensor> ordered;
  for (const size_t i : bucket[0]) ordered.push_back(parameters[i]);
  return ordered;
}

}  // namespace

double simulate_training(const SimulationOptions& options, const Observer& observe) {
  training::use_device(options.device);
  at::globalContext().setAllowTF32CuBLAS(options.tf32);
  const job::JobInputs inputs = job::make_inputs(make_job(options));
  inputs.model->to(options.device);
  const std::vector<NamedTensor> named = in_bucket(module_state(inputs.model).parameters, options.aligned);
  const std::vector<at::Tensor> parameters = tensors_of(named);
  const auto optimizer = training::make_optimizer(*inputs.model, {});
  const LearningRateSchedule rate({.peak = options.learning_rate}, options.steps);
  const data::BatchPlan plan({.global_batch = options.batch_size, .world_size = options.ranks});
  const data::SampleOrder order(inputs.dataset->training_size(), static_cast<uint64_t>(options.seed));
  StepGradients gradients;
  for (const NamedTensor& parameter : named) {
    gradients.names.push_back(parameter.name);
    gradients.sizes.push_back(parameter.tensor.numel());
  }
  for (gradients.step = 1; gradients.step <= options.steps; ++gradients.step) {
    gradients.by_rank.clear();
    for (int64_t rank = 0; rank < options.ranks; ++rank) {
      reset_gradients(parameters);
      const models::Batch batch = inputs.dataset->training_batch(plan.samples(order, rank, gradients.step - 1, 0));
      inputs.model->forward(training::on_device(batch, options.device)).backward();
      gradients.by_rank.push_back(flat_gradients(parameters));
    }
    if (observe) observe(gradients);
    set_gradients(parameters, options.mean(gradients));
    set_learning_rate(*optimizer, rate.at(gradients.step - 1));
    clip_gradient_norm(parameters, 1.0);
    optimizer->step();
  }
  return mean_loss(*inputs.model, *inputs.dataset, options.held_out, options.device);
}

}  // namespace narrowcast::bench
