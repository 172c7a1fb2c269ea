// What this machine and its network reach: the kernels of the wire formats, and the link between the ranks.
#pragma once

#include <cstdint>

#include <narrowcast/process_group.h>
#include "ops/collectives/link.h"
#include "trainer/train/bench/results.h"

namespace narrowcast::bench {

// How much the kernels do while they are measured.
struct KernelOptions {
  int64_t elements = int64_t{1} << 25;  // float32: 128 MiB, more than a share of any cache
  int64_t turns = 9;                    // measured, after one to warm up
};

// Measures on the calling thread alone. Reading the memory and the two kernels take turns; the median of the turns
// counts.
KernelRates measure_kernels(const KernelOptions& options = {});

// More than the group's own measurement (collectives::find_link) takes: it is what the tables are compared with. The
// first message is far above what queues and token buckets take at once.
inline constexpr collectives::LinkEffort kLinkEffort{.pings = 100,
                                                     .messages = 7,
                                                     .message_seconds = 0.25,
                                                     .least_bytes = int64_t{4} << 20,
                                                     .most_bytes = int64_t{64} << 20};

// A collective over 2 ranks or more, on the group's CPU backend: collectives::measure_link, in which rank r sends to
// rank r + 1 (the last one to rank 0). Throws c10::DistBackendError if a peer fails.
LinkRate measure_link(const ProcessGroupPtr& group, const collectives::LinkEffort& effort = kLinkEffort);

}  // namespace narrowcast::bench
