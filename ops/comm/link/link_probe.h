// The measurement of a link, independent of the transport of its messages.
#pragma once

#include <cstdint>

#include "ops/comm/link/link.h"

namespace narrowcast::collectives {

// Name of the measurement in errors.
inline constexpr const char* kMeasuringLink = "measuring the link";

// One rank's part of a measurement. All ranks make the same calls. Each call returns the slowest rank's figure on all
// ranks, after all ranks have called it.
class LinkProbe {
 public:
  virtual ~LinkProbe() = default;

  // Returns half the median of `pings` round trips of a small message.
  virtual double seconds_per_hop(int64_t pings) = 0;

  // Returns the seconds of a message of `bytes` bytes to one peer, while one arrives from the other.
  virtual double seconds_of_message(int64_t bytes) = 0;

  // Bytes sent by this rank so far.
  virtual int64_t payload_bytes_sent() const = 0;
};

// Measures a link with messages that grow within the limits of `effort`. A collective.
LinkRates measure_by(LinkProbe& probe, const LinkEffort& effort);

}  // namespace narrowcast::collectives
