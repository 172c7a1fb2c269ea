// Measured communication cost between ranks whose tensors are sent on a device's stream: GPUs with NCCL.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "ops/comm/link/link.h"

namespace narrowcast::collectives {

// Links between GPUs are fast and their messages need no CPU time. The messages are therefore larger, and shorter in
// time.
inline constexpr LinkEffort kStreamLinkEffort{.message_seconds = 5e-3, .most_bytes = int64_t{64} << 20};

// Like measure_link, with messages on `device`. Each message is an all-to-all of the group's backend on the
// device's current stream, in which a rank sends to one peer alone. All ranks, including ranks without peers, therefore
// call the same collectives in the same order on one communicator.
//
// Events on the stream enclose the messages, so the figures exclude the time in which ranks agree on them. Hops follow
// each other on the stream as in an all-reduce. If enqueuing a message on the host takes longer than the message, that
// time is measured.
//
// Waits first for all work of the device, then for each measurement, so it cannot be used while a CUDA graph is
// recorded. Use on the CPU, where the host waits for collectives, is for tests.
LinkRates measure_link_on_stream(const c10::intrusive_ptr<c10d::ProcessGroup>& group, at::Device device,
                                 const std::optional<LinkPeers>& peers, const LinkEffort& effort = kStreamLinkEffort);

}  // namespace narrowcast::collectives
