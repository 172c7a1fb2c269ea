#include "trainer/train/optimization/device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/strip.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <mutex>
#include <string_view>
#include <utility>

#include "trainer/base/files/hash.h"
#include "trainer/ddp/backends/group_backend.h"
#include "trainer/train/optimization/saved_buffers.h"

namespace narrowcast::training {
namespace {

// libc10_cuda, which only a CUDA build loads, registers the guard when it is loaded.
bool built_with_cuda() { return c10::impl::hasDeviceGuardImpl(c10::kCUDA); }

at::Device gpu(const std::string& name, int64_t index) {
  TORCH_CHECK_VALUE(built_with_cuda(), "device: ", name, " needs a build with CUDA, but this build has no CUDA");
  const int64_t gpus = gpu_count();
  TORCH_CHECK_VALUE(gpus > 0, "device: ", name, " needs a GPU, but this process has none: no GPU or no driver");
  TORCH_CHECK_VALUE(index < gpus, "device: ", name, " means GPU ", index, " here, but this process can use ", gpus,
                    gpus == 1 ? " GPU; cuda:0 selects it on every rank" : " GPUs");
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

int64_t index_of(const std::string& name) {
  int32_t index = -1;
  const bool is_number = absl::SimpleAtoi(absl::StripPrefix(name, "cuda:"), &index) && index >= 0;
  TORCH_CHECK_VALUE(is_number, "device: ", name, " is not a GPU; example: cuda:0");
  return index;
}

// LibTorch's generators from which a model on `device` draws.
std::vector<at::Generator> generators_for(at::Device device) {
  std::vector<at::Generator> generators = {at::detail::getDefaultCPUGenerator()};
  if (!device.is_cpu()) {
    generators.push_back(at::globalContext().defaultGenerator(device));
  }
  return generators;
}

// Pinned memory returns to its pool only when the copy is done.
at::Tensor copied_through_pinned_memory(const at::Tensor& tensor, at::Device device) {
  return tensor.pin_memory().to(device, /*non_blocking=*/true);
}

}  // namespace

int64_t gpu_count() { return built_with_cuda() ? c10::impl::getDeviceGuardImpl(c10::kCUDA)->deviceCount() : 0; }

at::Device choose_device(const std::string& name, const WorkerEnv& env) {
  if (name == "cpu" || (name == "auto" && gpu_count() < env.local_world_size)) {
    return c10::kCPU;
  }
  if (name == "cuda" || name == "auto") {
    return gpu(name, env.local_rank);
  }
  TORCH_CHECK_VALUE(absl::StartsWith(name, "cuda:"), "device: unknown name '", name,
                    "'; known: auto, cpu, cuda, cuda:N");
  return gpu(name, index_of(name));
}

std::string choose_backend(const std::string& name, at::Device device) {
  const std::string fitting = device.is_cuda() ? kNcclBackend : kGlooBackend;
  TORCH_CHECK_VALUE(name == "auto" || is_known_backend(name), "backend: unknown name '", name, "'; known: auto, ",
                    kGlooBackend, ", ", kNcclBackend);
  TORCH_CHECK_VALUE(name == "auto" || name == fitting, "backend: ", name, " does not move tensors on ",
                    device.is_cuda() ? "a GPU" : "the CPU", ", where this rank computes; ", fitting, " does");
  return fitting;
}

void wait_for_device(at::Device device) {
  if (!device.is_cpu()) {
    c10::impl::getDeviceGuardImpl(device.type())->synchronizeDevice(device.index());
  }
}

void use_device(at::Device device) {
  if (!device.is_cpu()) {
    c10::impl::getDeviceGuardImpl(device.type())->setDevice(device);
  }
}

models::Batch on_device(const models::Batch& batch, at::Device device) {
  return {.inputs = batch.inputs.to(device), .targets = batch.targets.to(device)};
}

void seed_draws(at::Device device, const DrawSeed& seed) {
  const uint64_t mixed = fnv1a(c10::str("draws of seed ", seed.seed, " rank ", seed.rank, " step ", seed.step));
  for (at::Generator& generator : generators_for(device)) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(mixed);
  }
}

void on_trial(const torch::nn::Module& model, const std::function<void()>& run) {
  const std::vector<at::Tensor> parameters = model.parameters();
  const at::Device device = parameters.empty() ? at::Device(at::kCPU) : parameters[0].device();
  std::vector<at::Generator> generators = generators_for(device);
  std::vector<at::Tensor> drawn;
  for (at::Generator& generator : generators) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    drawn.push_back(generator.get_state());
  }
  SavedBuffers buffers(model);
  buffers.save();
  run();
  buffers.restore();
  for (size_t i = 0; i < generators.size(); ++i) {
    const std::lock_guard<std::mutex> lock(generators[i].mutex());
    generators[i].set_state(drawn[i]);
  }
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
    batch.inputs.record_stream(computing);  // Their memory belongs to the copying stream.
    batch.targets.record_stream(computing);
  }
  return batch;
}

}  // namespace narrowcast::training
