// What ranks hand each other of a call before data is sent: a few numbers, the same amount on all of them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace narrowcast::collectives {

// Every rank's `row`, [n] of the same type and size on all ranks: [W, n] on the CPU, by rank. It travels on `device`,
// which is waited for. Where a rank's message is too short, zeros are left. c10::DistBackendError naming this rank and
// `call` if a peer or the network fails.
at::Tensor all_gather_rows(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const std::string& call,
                           const at::Tensor& row, at::Device device);

}  // namespace narrowcast::collectives
