// Decides how many samples of each batch every rank takes, by the speeds of the ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <narrowcast/process_group.h>

namespace narrowcast::training {

// The shares of all ranks, and why. The same on all ranks.
struct ChosenShares {
  std::vector<int64_t> samples;            // of each rank in a batch
  std::vector<double> seconds_per_sample;  // of each rank's own computation, as it counts
};

// Begins with equal shares. Each rank measures the time that it computes, without waiting for others. After each window
// of steps the ranks exchange these times, and all make the same decision: shares in proportion to the speeds
// (data::shares_by_speed), if the slowest rank's time then falls by more than kLeastGain.
//
// The time of a window is the lesser mean of its two halves: one long pause is no change of speed. Processors with a
// quota alternate between full speed and none, so that only means show their speed. A rank that waits for others does
// not use up its quota and seems faster than it is. So a slower speed counts at once, but a faster one only by
// kMostFall per window: otherwise shares would swing. The first steps are left out, and the first window is short. A
// rank that becomes slow is noticed after at most two windows of 24 steps.
class ShareChooser {
 public:
  static constexpr int64_t kSkippedSteps = 2;  // the first ones, which allocate memory
  static constexpr int64_t kFirstHalf = 3;     // steps in each half of the first window
  static constexpr int64_t kHalf = 12;         // and in each half of the later ones
  static constexpr double kLeastGain = 0.03;   // of the slowest rank's time
  static constexpr double kMostFall = 0.9;     // a sample's time falls to no less than this part of the last window's

  // `batch` samples are shared, at least `least` for each rank. The group's size times `least` is at most `batch`, and
  // the size divides it.
  ShareChooser(ProcessGroupPtr group, int64_t batch, int64_t least);

  // The present shares of all ranks.
  const std::vector<int64_t>& shares() const { return shares_; }

  // Goes on with shares that were decided before, if each is at least `least`: it may have been less then. Throws
  // CorruptInputError unless they are a number for each rank, each at least 1, and together `batch`.
  void resume(const std::vector<int64_t>& shares);

  // Ends a step in which this rank has computed for `seconds`. A collective at the end of a window. Returns the
  // decision if shares have changed, and the first decision in any case. Throws c10::DistBackendError if a peer fails.
  std::optional<ChosenShares> end_step(double seconds);

 private:
  int64_t half() const { return has_decided_ ? kHalf : kFirstHalf; }

  const ProcessGroupPtr group_;
  const int64_t batch_;
  const int64_t least_;
  std::vector<int64_t> shares_;
  std::vector<double> seconds_per_sample_;  // of each rank, after the last window
  int64_t steps_ = -kSkippedSteps;          // in this window
  double first_half_ = 0;                   // seconds
  double second_half_ = 0;
  bool has_decided_ = false;
};

}  // namespace narrowcast::training
