#include "trainer/train/bench/recommendation.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace narrowcast::bench {
namespace {

constexpr double kLeastGain = 1.05;

// A hook over all cases.
struct Candidate {
  std::string hook;
  std::vector<double> speed_ups = {};
  std::vector<double> against_bf16 = {};
  int64_t payload_bytes = 0;

  double mean() const;
};

double geometric_mean(const std::vector<double>& values) {
  double logarithms = 0;
  for (const double value : values) {
    logarithms += std::log(value);
  }
  return std::exp(logarithms / static_cast<double>(values.size()));
}

double Candidate::mean() const { return geometric_mean(speed_ups); }

Candidate& find_or_add(std::vector<Candidate>& candidates, const std::string& hook) {
  const auto found = std::find_if(candidates.begin(), candidates.end(),
                                  [&](const Candidate& candidate) { return candidate.hook == hook; });
  return found == candidates.end() ? candidates.emplace_back(Candidate{.hook = hook}) : *found;
}

std::vector<Candidate> collect(const BenchResults& results) {
  std::vector<Candidate> candidates;
  for (const HookTime& time : results.hooks) {
    const auto gain = speed_up(results, time, kReference);
    if (time.hook == kReference || !averages(time.hook) || !gain) {
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

// The most exact of those that are as good as the fastest; of equals the first.
const Candidate& choose(const std::vector<Candidate>& candidates, const Candidate& fastest) {
  const double enough = std::max(kLeastGain, fastest.mean() / kLeastGain);
  const Candidate* chosen = &fastest;
  for (const Candidate& candidate : candidates) {
    if (candidate.mean() >= enough && candidate.payload_bytes > chosen->payload_bytes) {
      chosen = &candidate;
    }
  }
  return *chosen;
}

std::string cases_text(const Recommendation& recommendation) {
  return recommendation.cases == 1 ? ""
                                   : absl::StrFormat(" (%.2f to %.2f in %d cases)", recommendation.least,
                                                     recommendation.most, recommendation.cases);
}

std::string bf16_text(const Recommendation& recommendation) {
  return !recommendation.against_bf16 || recommendation.hook == kBf16
             ? ""
             : absl::StrFormat(" and %.2f times as fast as %s", *recommendation.against_bf16, kBf16);
}

}  // namespace

Recommendation recommend(const BenchResults& results) {
  const std::vector<Candidate> candidates = collect(results);
  if (candidates.empty()) {
    return {};
  }
  const auto fastest = std::max_element(candidates.begin(), candidates.end(),
                                        [](const auto& a, const auto& b) { return a.mean() < b.mean(); });
  const bool pays = fastest->mean() >= kLeastGain;
  const Candidate& chosen = pays ? choose(candidates, *fastest) : *fastest;
  const auto [least, most] = std::minmax_element(chosen.speed_ups.begin(), chosen.speed_ups.end());
  return {
      .hook = pays ? chosen.hook : "",
      .fastest = fastest->hook,
      .speed_up = chosen.mean(),
      .least = *least,
      .most = *most,
      .cases = static_cast<int64_t>(chosen.speed_ups.size()),
      .against_bf16 = chosen.against_bf16.empty() ? std::nullopt : std::optional(geometric_mean(chosen.against_bf16))};
}

std::string recommendation_text(const Recommendation& recommendation) {
  if (recommendation.fastest.empty()) {
    return absl::StrCat("Recommendation: none, only ", kReference, " was measured.\n");
  }
  const std::string cases = cases_text(recommendation);
  if (recommendation.hook.empty()) {
    return absl::StrFormat(
        "Recommendation: no hook pays here, use --hook=none. The fastest, %s, is %.2f times as fast "
        "as %s%s.\n",
        recommendation.fastest, recommendation.speed_up, kReference, cases);
  }
  return absl::StrFormat(
      "Recommendation: --hook=%s. It is %.2f times as fast as %s%s%s; docs/hooks.md says how exact it is.\n",
      recommendation.hook, recommendation.speed_up, kReference, cases, bf16_text(recommendation));
}

}  // namespace narrowcast::bench
