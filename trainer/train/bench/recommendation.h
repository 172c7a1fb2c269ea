// The recommendation of a hook, and whether the iterations suffice for one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/train/bench/results.h"
#include "trainer/train/bench/statistics.h"

namespace narrowcast::bench {

// The possible outcomes of a run.
enum class Verdict {
  kNothingToCompare,  // only the reference, or besides it only hooks that do not average, was measured
  kTooFewIterations,  // for any interval
  kUndecided,         // the iterations vary too much
  kNoHookPays,        // the reference is as good as any
  kHookPays,
};

// Another hook, and the leading hook's speed-up over it.
struct Rival {
  std::string hook = {};
  Interval speed_up = {};  // at 95%, see paired_interval
};

// The hook that is recommended, and what it gains.
struct Recommendation {
  Verdict verdict = Verdict::kNothingToCompare;
  std::string hook = {};     // the recommended hook; empty unless one pays
  std::string fastest = {};  // by its medians; empty: nothing to compare
  double speed_up = 0;  // of `hook`, or of `fastest` if that is empty, over the reference; geometric mean of all cases
  std::optional<Interval> interval = {};    // of the speed-up, by paired_interval; none with too few iterations
  double least = 0;                         // the smallest speed-up in a case
  double most = 0;                          // the largest speed-up in a case
  int64_t cases = 0;                        // number of cases
  std::optional<double> against_bf16 = {};  // speed-up over bf16_compress, if that was measured
  int64_t iterations = 0;                   // of each hook in each case
  std::string leader = {};                  // if undecided: the fastest hook or the reference, which looks best
  std::vector<Rival> undecided = {};        // but may actually be slower than these hooks
};

// The speed-up of the hook over `other`, as an interval that contains the median with 95% confidence. The iterations
// are paired, since hooks take turns in each iteration and a disturbance slows all of them. The result is the
// median_interval of the iterations' ratios, the other's time over the hook's, each the geometric mean over the cases.
// Empty with too few iterations, or if no case has both hooks.
std::optional<Interval> paired_interval(const BenchResults& results, const std::string& hook, const std::string& other);

// A hook can be recommended if it meets both conditions:
//   - It pays: its speed-up over the reference, allreduce, is at least 1.05, as the geometric mean over the cases of
//     the ratios of median times, and above 1 in its whole paired_interval.
//   - It is not behind: the lower end of its paired_interval against each other hook is at least 1 / 1.05.
//
// Among these, the hook that sends the most bytes is recommended: narrower numbers cost exactness, so they must gain
// something. "No hook pays" requires that no hook's mean speed-up over the reference, and no upper end of its interval,
// reaches 1.05. Otherwise the order is a guess, and none is recommended. noop, which averages nothing, is never
// recommended.
Recommendation recommend(const BenchResults& results);

// The recommendation in one or two sentences, with a line feed at the end.
std::string recommendation_text(const Recommendation& recommendation);

}  // namespace narrowcast::bench
