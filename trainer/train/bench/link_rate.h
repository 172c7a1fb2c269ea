// The network between the ranks, without any algorithm on it.
#pragma once

#include <cstdint>

#include <narrowcast/process_group.h>
#include "trainer/train/bench/results.h"

namespace narrowcast::bench {

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
