// Which hook pays, and whether the iterations can tell.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/train/bench/results.h"
#include "trainer/train/bench/statistics.h"

namespace narrowcast::bench {

// What a run can say.
enum class Verdict {
  kNothingToCompare,  // only the reference, or besides it only hooks that do not average, was measured
  kTooFewIterations,  // for any interval
  kUndecided,         // the iterations vary too much
  kNoHookPays,        // the reference is as good as any
  kHookPays,
};

// Another hook, and how many times as fast as it the leading one is.
struct Rival {
  std::string hook = {};
  Interval speed_up = {};  // at 95%, see paired_interval
};

// The hook that is recommended, and what it gains.
struct Recommendation {
  Verdict verdict = Verdict::kNothingToCompare;
  std::string hook = {};     // that is recommended: empty unless one pays
  std::string fastest = {};  // by its medians; empty: nothing to compare
  double speed_up =
      0;  // of `hook`, or of `fastest` if there is none, against the reference; geometric mean of all cases
  std::optional<Interval> interval = {};    // the same by paired_interval; none with too few iterations
  double least = 0;                         // the lowest and
  double most = 0;                          // the highest of its speed-ups in a case
  int64_t cases = 0;                        // that is over so many
  std::optional<double> against_bf16 = {};  // the same against bf16_compress, if that was measured
  int64_t iterations = 0;                   // of each hook in each case
  std::string leader = {};                  // undecided: who looks best, the fastest hook or the reference, but
  std::vector<Rival> undecided = {};        // may in truth be behind these
};

// How many times as fast as `other` the hook is, as an interval that holds the median with 95% confidence. The
// iterations are paired, as hooks take turns in each of them and what disturbs one disturbs the others: it is the
// median_interval of the iterations' ratios, other's time over the hook's, each the geometric mean of the cases.
// None with too few iterations, or if there is no case with both.
std::optional<Interval> paired_interval(const BenchResults& results, const std::string& hook, const std::string& other);

// A hook can be recommended if
//  - it pays: it is at least 1.05 times as fast as the reference, allreduce, by the geometric mean over the cases of
//  the
//    ratios of median times, and is faster than it in all of its paired_interval,
//  - and it is not behind: of its paired_interval against each other hook the lower end is at least 1 / 1.05.
// The one of those that sends the most bytes is recommended: narrower numbers cost exactness, which must earn
// something. None pays if no hook is 1.05 times as fast as the reference, by neither the mean nor the upper end of an
// interval. Otherwise the order is a guess, and none is recommended. noop, which averages nothing, never is.
Recommendation recommend(const BenchResults& results);

// The recommendation in a sentence or two, ended by a line's end.
std::string recommendation_text(const Recommendation& recommendation);

}  // namespace narrowcast::bench
