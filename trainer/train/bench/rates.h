// What this machine and its network reach: the kernels of the wire formats, and the link between the ranks.
#pragma once

#include <cstdint>

#include <narrowcast/process_group.h>
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

// What is sent over the link while it is measured.
struct LinkOptions {
  int64_t pings = 100;                     // round trips between each two neighbours
  int64_t messages = 7;                    // bulk messages of each rank
  double message_seconds = 0.25;           // that one of them should take
  int64_t least_bytes = int64_t{4} << 20;  // of one: far above what queues and token buckets take at once
  int64_t most_bytes = int64_t{64} << 20;
};

// A collective over 2 ranks or more, on the group's CPU backend. Rate: rank r sends one large message to rank r + 1
// (the last one to rank 0) while it receives one from rank r - 1; the receive is posted before, all start together,
// and the slowest rank's median counts. Round trip: rank r sends 8 bytes to rank r + 1, which sends them back, one
// pair after the other; the slowest pair's median counts. Throws c10::DistBackendError if a peer fails.
LinkRate measure_link(const ProcessGroupPtr& group, const LinkOptions& options = {});

}  // namespace narrowcast::bench
