// A common start of all ranks of a measurement.
#pragma once

#include <functional>
#include <string>

#include <narrowcast/process_group.h>

namespace narrowcast::bench {

// Ranks leave a barrier up to one flight of a packet apart: a rank leaves when the others' messages have reached it.
// The next exchange then lasts as much longer on the rank that left first, and the difference stays from one iteration
// to the next. On a long link ranks therefore start at a time that rank 0 tells to each of them.
//
// Each rank estimates the difference of its clock from rank 0's: rank 0's answer to the ping with the shortest round
// trip was sent in its middle (Cristian's algorithm). The error is at most half the difference of the two ways.
class StartLine {
 public:
  struct Options {
    double least_round_trip = 2e-3;          // Seconds. With a shorter one wait() is only a barrier.
    double margin = 1e-3;                    // Seconds until a start, besides what rank 0's message takes.
    std::function<double()> clock = steady;  // Seconds since any point.
  };

  // A collective, of four round trips for each rank. For a group that moves no tensors on CPUs, wait() is only a
  // barrier.
  explicit StartLine(const ProcessGroupPtr& group) : StartLine(group, Options()) {}
  StartLine(const ProcessGroupPtr& group, Options options);

  // A collective: returns on all ranks at the same time.
  void wait(const std::string& what) const;

  // Seconds of the slowest rank's round trip to rank 0.
  double round_trip() const { return round_trip_; }

 private:
  static double steady();

  double now() const { return options_.clock() + ahead_; }
  // The time of rank 0's clock at which all ranks start.
  double agree() const;

  const ProcessGroupPtr group_;
  const Options options_;
  double ahead_ = 0;  // Seconds that rank 0's clock is ahead of this rank's.
  double round_trip_ = 0;
  bool is_long_ = false;
};

}  // namespace narrowcast::bench
