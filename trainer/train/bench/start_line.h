// A common start of all ranks of a measurement.
#pragma once

#include <chrono>
#include <string>

#include <narrowcast/process_group.h>

namespace narrowcast::bench {

// Ranks leave a barrier up to one flight of a packet apart: a rank leaves when the others' messages have reached it.
// The next exchange then lasts as much longer on the rank that left first, and the difference stays from one iteration
// to the next. On a long link ranks therefore start at a time that they agree on.
//
// Each rank estimates the difference of its clock from rank 0's: rank 0's answer to the ping with the shortest round
// trip was sent in its middle (Cristian's algorithm). The error is at most half the difference of the two ways.
class StartLine {
 public:
  static constexpr double kLeastRoundTripSeconds = 2e-3;

  // A collective. With a round trip below `least_round_trip` seconds, and for a group that moves no tensors on CPUs,
  // wait() is only a barrier.
  explicit StartLine(const ProcessGroupPtr& group, double least_round_trip = kLeastRoundTripSeconds);

  // A collective: returns on all ranks at the same time.
  void wait(const std::string& what) const;

  // Seconds of the slowest rank's round trip to rank 0.
  double round_trip() const { return round_trip_; }

 private:
  double now() const;

  const ProcessGroupPtr group_;
  double ahead_ = 0;  // Seconds that rank 0's clock is ahead of this rank's.
  double round_trip_ = 0;
  bool is_long_ = false;
};

}  // namespace narrowcast::bench
