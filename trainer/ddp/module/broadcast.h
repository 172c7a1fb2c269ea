// Broadcasts of a module's tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include <narrowcast/export.h>
#include <narrowcast/process_group.h>

namespace narrowcast {

// A collective: the tensors get the values of rank `from`, in place. All ranks pass strided tensors of the same number,
// shapes and dtypes, on a device that the group's backend moves. Every dtype can be sent; dtypes that backends do not
// support are sent as bytes. Nothing is sent for an empty list. Throws c10::DistBackendError naming `step` if a peer
// fails.
NARROWCAST_EXPORT void broadcast_from_rank(int64_t from, const ProcessGroupPtr& group,
                                           const std::vector<at::Tensor>& tensors, const std::string& step);

// The same from rank 0.
inline void broadcast_from_rank_0(const ProcessGroupPtr& group, const std::vector<at::Tensor>& tensors,
                                  const std::string& step) {
  broadcast_from_rank(0, group, tensors, step);
}

}  // namespace narrowcast
