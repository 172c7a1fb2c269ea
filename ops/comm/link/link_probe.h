// What measures a link, whatever carries its messages.
#pragma once

#include <cstdint>

#include "ops/comm/link/link.h"

namespace narrowcast::collectives {

// What it is called where it fails.
inline constexpr const char* kMeasuringLink = "measuring the link";

// One rank's part. All ranks make the same calls; each returns the same on all of them, the slowest one's figure, and
// on none before all have called it.
class LinkProbe {
 public:
  virtual ~LinkProbe() = default;

  // Half the median of so many round trips of a small message between a rank and the one that it sends to.
  virtual double seconds_per_hop(int64_t pings) = 0;

  // Of a message of so many bytes to one peer, while one comes from the other.
  virtual double seconds_of_message(int64_t bytes) = 0;

  // By this rank so far.
  virtual int64_t payload_bytes_sent() const = 0;
};

// A collective: what a link costs, by messages that grow as the effort says.
LinkRates measure_by(LinkProbe& probe, const LinkEffort& effort);

}  // namespace narrowcast::collectives
