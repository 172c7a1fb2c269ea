// Built only with CUDA.
#include "trainer/ddp/backends/nccl_backend.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <narrowcast/consensus.h>
#include "trainer/ddp/backends/nccl_environment.h"

namespace narrowcast {
namespace {

int64_t gpu_of(const WorkerEnv& env, const ProcessGroupOptions& options) {
  return options.gpu.value_or(env.local_rank);
}

// NCCL identifies machines by the host's name and the number that Linux draws at each boot.
std::string name_of_host() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return c10::str(name.data(), " ", boot);
}

// The same for all processes that use this GPU, even if they number it differently.
std::string name_of_gpu(c10::DeviceIndex gpu) {
  std::array<char, 32> bus{};
  C10_CUDA_CHECK(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), gpu));
  return c10::str(name_of_host(), " ", bus.data());
}

std::string interface_for(const WorkerEnv& env, const ProcessGroupOptions& options) {
  const std::string named = socket_interface(env, options);
  return named.empty() && env.on_one_node() ? "lo" : named;
}

}  // namespace

void check_nccl_backend(const WorkerEnv& env, const ProcessGroupOptions& options) {
  nccl::check_error_handling(process_environment());
  const int64_t gpus = c10::cuda::device_count();
  const int64_t gpu = gpu_of(env, options);
  TORCH_CHECK_VALUE(gpu >= 0 && gpu < gpus, "backend 'nccl' needs a GPU: rank ", env.rank, " is configured for GPU ",
                    gpu, ", but this process can use ", gpus);
  cudaDeviceProp properties = {};
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, static_cast<int>(gpu)));
  nccl::check_capability(
      {.number = gpu, .name = properties.name, .major = properties.major, .minor = properties.minor});
}

GroupBackend create_nccl_backend(const ProcessGroupPtr& group, const c10::intrusive_ptr<c10d::Store>& store,
                                 const WorkerEnv& env, const ProcessGroupOptions& options) {
  check_nccl_backend(env, options);
  const auto gpu = static_cast<c10::DeviceIndex>(gpu_of(env, options));
  c10::cuda::set_device(gpu);
  nccl::set_where_missing(nccl::environment_for(
      {.rank = env.rank, .interface = interface_for(env, options), .gpus = all_gather_text(group, name_of_gpu(gpu))}));
  // Communication kernels get priority over computation.
  auto nccl_options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  nccl_options->timeout = options.timeout;
  nccl_options->group_name = options.group_name;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, static_cast<int>(env.rank),
                                                             static_cast<int>(env.world_size), nccl_options);
  // Collectives without a tensor run on this GPU as well, instead of on a GPU guessed from the rank.
  backend->setBoundDeviceId(c10::Device(c10::DeviceType::CUDA, gpu));
  return {c10::DeviceType::CUDA, c10d::ProcessGroup::BackendType::NCCL, std::move(backend)};
}

}  // namespace narrowcast
