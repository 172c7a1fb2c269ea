// NCCL moves CUDA tensors. Built only where CUDA is.
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "trainer/process_group/backends.h"

namespace narrowcast {

GroupBackend create_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, const WorkerEnv& env,
                                 const ProcessGroupOptions& options) {
  const int64_t gpus = c10::cuda::device_count();
  TORCH_CHECK_VALUE(env.local_rank < gpus, "backend 'nccl' needs a GPU per local rank, but LOCAL_RANK=", env.local_rank,
                    " and this node has ", gpus, " GPUs");
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(env.local_rank));
  auto nccl_options = c10d::ProcessGroupNCCL::Options::create();
  nccl_options->timeout = options.timeout;
  nccl_options->group_name = options.group_name;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, static_cast<int>(env.rank),
                                                             static_cast<int>(env.world_size), nccl_options);
  return {c10::DeviceType::CUDA, c10d::ProcessGroup::BackendType::NCCL, std::move(backend)};
}

}  // namespace narrowcast
