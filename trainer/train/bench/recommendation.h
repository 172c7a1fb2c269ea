// Which hook pays.
#pragma once

#include <optional>
#include <string>

#include "trainer/train/bench/results.h"

namespace narrowcast::bench {

// The hook that is recommended, and what it gains.
struct Recommendation {
  std::string hook = {};     // empty: none pays
  std::string fastest = {};  // empty: no other hook than the reference was measured
  double speed_up = 0;  // of `hook` against the reference, or of `fastest` if none pays; geometric mean of all cases
  double least = 0;     // its lowest and
  double most = 0;      // its highest speed-up in a case
  int64_t cases = 0;    // that is over so many
  std::optional<double> against_bf16 = {};  // the same against bf16_compress, if that was measured
};

// A hook pays if it is at least 1.05 times as fast as the reference, allreduce, in the geometric mean over the cases.
// Among those that are within 5% of the fastest the one that sends the most bytes is recommended: narrower numbers cost
// exactness, which must earn something. noop, which averages nothing, never is.
Recommendation recommend(const BenchResults& results);

// The recommendation in a sentence or two, ended by a line's end.
std::string recommendation_text(const Recommendation& recommendation);

}  // namespace narrowcast::bench
