#include "hooks/comm_hook.h"

#include <c10/util/Exception.h>

namespace narrowcast::hooks {

at::Tensor CommHook::parseHookResult(const c10::IValue& result) {
  if (result.isTensor()) {
    return result.toTensor();
  }
  TORCH_CHECK(result.isTensorList() && result.toTensorVector().size() == 1, "hook ", name(),
              ": its future must hold one tensor, but holds ", result.tagKind());
  return result.toTensorVector()[0];
}

int64_t ring_all_reduce_bytes(int64_t payload_bytes, int64_t world_size) {
  return (2 * (world_size - 1) * payload_bytes + world_size - 1) / world_size;
}

}  // namespace narrowcast::hooks
