// NCCL moves CUDA tensors. Built only where CUDA is.
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "trainer/process_group/backends.h"

namespace narrowcast {
namespace {

int64_t gpu_of(const WorkerEnv& env, const ProcessGroupOptions& options) {
  return options.gpu.value_or(env.local_rank);
}

}  // namespace

void check_nccl_backend(const WorkerEnv& env, const ProcessGroupOptions& options) {
  const int64_t gpus = c10::cuda::device_count();
  const int64_t gpu = gpu_of(env, options);
  TORCH_CHECK_VALUE(gpu >= 0 && gpu < gpus, "backend 'nccl' needs a GPU: rank ", env.rank, " is to use GPU ", gpu,
                    ", but this process can use ", gpus);
}

GroupBackend create_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, const WorkerEnv& env,
                                 const ProcessGroupOptions& options) {
  check_nccl_backend(env, options);
  const auto gpu = static_cast<c10::DeviceIndex>(gpu_of(env, options));
  c10::cuda::set_device(gpu);
  auto nccl_options = c10d::ProcessGroupNCCL::Options::create();
  nccl_options->timeout = options.timeout;
  nccl_options->group_name = options.group_name;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, static_cast<int>(env.rank),
                                                             static_cast<int>(env.world_size), nccl_options);
  // Collectives that carry no tensor of their own run there, too, and not on a GPU guessed from the rank.
  backend->setBoundDeviceId(c10::Device(c10::DeviceType::CUDA, gpu));
  return {c10::DeviceType::CUDA, c10d::ProcessGroup::BackendType::NCCL, std::move(backend)};
}

}  // namespace narrowcast
