// How many samples of a global batch each rank takes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/train/data/dataset.h"

namespace narrowcast::data {

// The wish of a training.
struct Shares {
  enum class Kind { kEqual, kAuto, kGiven };

  Kind kind = Kind::kEqual;           // kAuto: by the ranks' measured speeds
  std::vector<int64_t> samples = {};  // of each rank; only with kGiven

  bool are_equal() const { return kind == Kind::kEqual; }
};

// "equal", "auto" or numbers of samples such as "24,8". Anything else throws c10::ValueError that names it.
Shares parse_shares(const std::string& text);

// The inverse.
std::string to_string(const Shares& shares);
std::string to_string(const std::vector<int64_t>& samples);

// Throws c10::ValueError "shares: ..." unless options.shares, which are not empty, have one number for each rank, each
// at least accumulation_steps, and together global_batch.
void check_given_shares(const BatchPlanOptions& options);

// Shares of `global_batch` in proportion to the ranks' speeds, each at least `least`: rounded down, and what is left
// goes to the ranks with the largest remainders, of equal ones to the first. `seconds_per_sample` are positive, one for
// each rank. Throws c10::ValueError if global_batch is below `least` times the number of ranks.
std::vector<int64_t> shares_by_speed(int64_t global_batch, const std::vector<double>& seconds_per_sample,
                                     int64_t least);

// Seconds of the slowest rank for its share.
double seconds_of_slowest(const std::vector<int64_t>& shares, const std::vector<double>& seconds_per_sample);

}  // namespace narrowcast::data
