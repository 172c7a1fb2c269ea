// What it costs to send between ranks whose tensors travel on a device's stream: GPUs, over NCCL.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "ops/comm/link/link.h"

namespace narrowcast::collectives {

// Links between GPUs are fast, and their messages need no processor that others use: larger ones, for a shorter time.
inline constexpr LinkEffort kStreamLinkEffort{.message_seconds = 5e-3, .most_bytes = int64_t{64} << 20};

// As measure_link, by messages on `device`, which the group's backend for it moves: all-to-alls on the device's current
// stream in which a rank sends to one peer alone, so that all ranks, those without peers too, call the same collectives
// in the same order on one communicator. Events on the stream enclose them: no figure has the time in it that ranks
// need to agree on one. Hops follow each other on the stream as those of an exchange do: where the host takes longer to
// enqueue one than it takes, that is what it costs.
//
// Waits first for all that the device has under way, and for each measurement: not while a CUDA graph is recorded. On
// the CPU, where collectives are waited for, it is for tests.
LinkRates measure_link_on_stream(const c10::intrusive_ptr<c10d::ProcessGroup>& group, at::Device device,
                                 const std::optional<LinkPeers>& peers, const LinkEffort& effort = kStreamLinkEffort);

}  // namespace narrowcast::collectives
