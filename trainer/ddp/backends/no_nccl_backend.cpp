// Replaces nccl_backend.cpp in a build without CUDA.
#include <c10/util/Exception.h>

#include "trainer/ddp/backends/nccl_backend.h"

namespace narrowcast {

void check_nccl_backend(const WorkerEnv& /*env*/, const ProcessGroupOptions& options) {
  TORCH_CHECK_VALUE(false, "backend '", options.backend,
                    "' is not part of this build; use gloo, or configure with -DNARROWCAST_CUDA=ON");
}

GroupBackend create_nccl_backend(const ProcessGroupPtr& /*group*/, const c10::intrusive_ptr<c10d::Store>& /*store*/,
                                 const WorkerEnv& env, const ProcessGroupOptions& options) {
  check_nccl_backend(env, options);
  return {};
}

}  // namespace narrowcast
