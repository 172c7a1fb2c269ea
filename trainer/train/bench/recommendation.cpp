#include "trainer/train/bench/recommendation.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "hooks/table/hook_table.h"

namespace narrowcast::bench {
namespace {

constexpr double kLeastGain = 1.05;
constexpr size_t kMostRivalsNamed = 3;

double geometric_mean(const std::vector<double>& values) {
  double logarithms = 0;
  for (const double value : values) {
    logarithms += std::log(value);
  }
  return std::exp(logarithms / static_cast<double>(values.size()));
}

// A hook's results over all cases.
struct Candidate {
  std::string hook;
  std::vector<double> speed_ups = {};
  std::vector<double> against_bf16 = {};
  int64_t payload_bytes = 0;

  double mean() const { return geometric_mean(speed_ups); }
};

Candidate& find_or_add(std::vector<Candidate>& candidates, const std::string& hook) {
  const auto found = std::find_if(candidates.begin(), candidates.end(),
                                  [&](const Candidate& candidate) { return candidate.hook == hook; });
  return found == candidates.end() ? candidates.emplace_back(Candidate{.hook = hook}) : *found;
}

// A hook that chooses among hooks is excluded: it is as fast as the hooks that it chooses.
bool is_one_hook(const std::string& hook) { return averages(hook) && !hooks::hook_row(hook).chooses; }

std::vector<Candidate> collect(const BenchResults& results) {
  std::vector<Candidate> candidates;
  for (const HookTime& time : results.hooks) {
    const auto gain = speed_up(results, time, kReference);
    if (time.hook == kReference || !is_one_hook(time.hook) || !gain) {
      continue;
    }
    Candidate& candidate = find_or_add(candidates, time.hook);
    candidate.speed_ups.push_back(*gain);
    candidate.payload_bytes += time.payload_bytes;
    if (const auto against_bf16 = speed_up(results, time, kBf16)) {
      candidate.against_bf16.push_back(*against_bf16);
    }
  }
  return candidates;
}

// For each iteration, the geometric mean over the cases of the other hook's time divided by the hook's.
std::vector<double> paired_ratios(const BenchResults& results, const std::string& hook, const std::string& other) {
  std::vector<double> logarithms;
  double cases = 0;
  for (const HookTime& time : results.hooks) {
    const HookTime* const against = time.hook == hook ? same_case(results, time, other) : nullptr;
    if (against == nullptr) {
      continue;
    }
    ++cases;
    logarithms.resize(time.milliseconds.size());
    for (size_t i = 0; i < logarithms.size(); ++i) {
      logarithms[i] += std::log(against->milliseconds.at(i) / time.milliseconds[i]);
    }
  }
  std::vector<double> ratios;
  for (const double logarithm : logarithms) {
    ratios.push_back(std::exp(logarithm / cases));
  }
  return ratios;
}

// Compares the candidates of one run.
class Comparison {
 public:
  Comparison(const BenchResults& results, const std::vector<Candidate>& candidates)
      : results_(results), candidates_(candidates) {}

  // The hooks that may actually be so much faster than `hook` that it should not be preferred to them.
  std::vector<Rival> rivals_of(const std::string& hook) const {
    std::vector<Rival> rivals;
    add_rival(hook, kReference, rivals);
    for (const Candidate& other : candidates_) {
      add_rival(hook, other.hook, rivals);
    }
    return rivals;
  }

  // The hook that sends the most bytes among those that pay and have no rivals: the first of equals; nullptr without
  // such a hook.
  const Candidate* best() const {
    const Candidate* best = nullptr;
    for (const Candidate& candidate : candidates_) {
      const bool sends_more = best == nullptr || candidate.payload_bytes > best->payload_bytes;
      if (sends_more && candidate.mean() >= kLeastGain && rivals_of(candidate.hook).empty()) {
        best = &candidate;
      }
    }
    return best;
  }

 private:
  void add_rival(const std::string& hook, const std::string& other, std::vector<Rival>& rivals) const {
    if (hook == other) {
      return;
    }
    const Interval speed_up = paired_interval(results_, hook, other).value();
    const bool is_behind = other == kReference ? speed_up.lower <= 1 : speed_up.lower < 1 / kLeastGain;
    if (is_behind) {
      rivals.push_back({.hook = other, .speed_up = speed_up});
    }
  }

  const BenchResults& results_;
  const std::vector<Candidate>& candidates_;
};

// The numbers of one candidate.
Recommendation of_candidate(const Candidate& candidate, const BenchResults& results) {
  const auto [least, most] = std::minmax_element(candidate.speed_ups.begin(), candidate.speed_ups.end());
  Recommendation recommendation;
  recommendation.speed_up = candidate.mean();
  recommendation.interval = paired_interval(results, candidate.hook, kReference);
  recommendation.least = *least;
  recommendation.most = *most;
  recommendation.cases = static_cast<int64_t>(candidate.speed_ups.size());
  if (!candidate.against_bf16.empty()) {
    recommendation.against_bf16 = geometric_mean(candidate.against_bf16);
  }
  recommendation.iterations = static_cast<int64_t>(results.hooks.front().milliseconds.size());
  return recommendation;
}

std::string interval_text(const Interval& interval) {
  return absl::StrFormat("%.2f to %.2f", interval.lower, interval.upper);
}

// The confidence interval of the speed-up, and its range over the cases.
std::string spread_text(const Recommendation& recommendation) {
  const std::string cases = recommendation.cases == 1
                                ? ""
                                : absl::StrFormat("; %.2f to %.2f in %d cases", recommendation.least,
                                                  recommendation.most, recommendation.cases);
  return absl::StrCat(" (", interval_text(recommendation.interval.value()), " at 95%", cases, ")");
}

std::string bf16_text(const Recommendation& recommendation) {
  return !recommendation.against_bf16 || recommendation.hook == kBf16
             ? ""
             : absl::StrFormat(" and %.2f times as fast as %s", *recommendation.against_bf16, kBf16);
}

// "int8 (0.80 to 1.40 times as fast) and 2 others".
std::string rivals_text(const std::vector<Rival>& rivals) {
  const size_t named = std::min(rivals.size(), kMostRivalsNamed);
  std::string text;
  for (size_t i = 0; i < named; ++i) {
    const bool last = i + 1 == rivals.size();
    absl::StrAppend(&text,
                    i == 0 ? ""
                    : last ? " and "
                           : ", ",
                    rivals[i].hook, " (", interval_text(rivals[i].speed_up), ")");
  }
  const size_t others = rivals.size() - named;
  return others == 0 ? text : absl::StrCat(text, " and ", others, others == 1 ? " other" : " others");
}

std::string undecided_text(const Recommendation& recommendation) {
  return absl::StrCat("Recommendation: none, the differences between the hooks are not significant. ",
                      recommendation.leader, " looks best, but its times vary too much to distinguish it from ",
                      rivals_text(recommendation.undecided), "; in brackets: the speed-up, at 95%. Use more than ",
                      recommendation.iterations, " iterations or a less busy machine.\n");
}

}  // namespace

std::optional<Interval> paired_interval(const BenchResults& results, const std::string& hook,
                                        const std::string& other) {
  return median_interval(paired_ratios(results, hook, other));
}

Recommendation recommend(const BenchResults& results) {
  const std::vector<Candidate> candidates = collect(results);
  if (candidates.empty()) {
    return {};
  }
  const auto fastest = std::max_element(candidates.begin(), candidates.end(),
                                        [](const auto& a, const auto& b) { return a.mean() < b.mean(); });
  Recommendation recommendation = of_candidate(*fastest, results);
  if (!recommendation.interval) {
    recommendation.verdict = Verdict::kTooFewIterations;
  } else if (const Comparison comparison(results, candidates); const Candidate* const best = comparison.best()) {
    recommendation = of_candidate(*best, results);
    recommendation.verdict = Verdict::kHookPays;
    recommendation.hook = best->hook;
  } else {
    const bool reference_leads = fastest->mean() < kLeastGain;
    recommendation.leader = reference_leads ? kReference : fastest->hook;
    recommendation.undecided = comparison.rivals_of(recommendation.leader);
    recommendation.verdict =
        reference_leads && recommendation.undecided.empty() ? Verdict::kNoHookPays : Verdict::kUndecided;
  }
  recommendation.fastest = fastest->hook;
  return recommendation;
}

std::string recommendation_text(const Recommendation& recommendation) {
  switch (recommendation.verdict) {
    case Verdict::kNothingToCompare:
      return absl::StrCat("Recommendation: none, only ", kReference, " was measured.\n");
    case Verdict::kTooFewIterations:
      return absl::StrCat("Recommendation: none, ", recommendation.iterations,
                          recommendation.iterations == 1 ? " iteration" : " iterations",
                          " measured, but a confidence of 95% needs at least ", kFewestForInterval, ".\n");
    case Verdict::kUndecided:
      return undecided_text(recommendation);
    case Verdict::kNoHookPays:
      return absl::StrFormat(
          "Recommendation: no hook is worthwhile here, use --hook=%s. The fastest, %s, is %.2f times as fast as "
          "%s%s.\n",
          hooks::kNoHook, recommendation.fastest, recommendation.speed_up, kReference, spread_text(recommendation));
    case Verdict::kHookPays:
      return absl::StrFormat(
          "Recommendation: --hook=%s. It is %.2f times as fast as %s%s%s; see docs/reference/hooks.md for its "
          "accuracy.\n",
          recommendation.hook, recommendation.speed_up, kReference, spread_text(recommendation),
          bf16_text(recommendation));
  }
  throw std::logic_error("no such verdict");
}

}  // namespace narrowcast::bench
