#include "trainer/train/training/window.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include <narrowcast/consensus.h>

namespace narrowcast::training {

Window window_of_all_ranks(const ProcessGroupPtr& group, const WindowOfRank& own) {
  const auto ranks = static_cast<size_t>(group->getSize());
  const auto rank = static_cast<size_t>(group->getRank());
  std::vector<double> sums(3 + 3 * ranks);
  sums[0] = own.loss;
  sums[1] = static_cast<double>(own.steps);
  sums[2] = static_cast<double>(own.batches);
  sums[3 + rank] = static_cast<double>(own.nonfinite_steps);
  sums[3 + ranks + rank] = static_cast<double>(own.skipped_in_a_row);
  sums[3 + 2 * ranks + rank] = static_cast<double>(own.peak_memory_bytes);
  sums = all_reduce_sum(group, sums);
  reporting::SkippedReport skipped;
  for (size_t other = 0; other < ranks; ++other) {
    if (sums[3 + other] > 0) skipped.nonfinite_ranks.push_back(static_cast<int64_t>(other));
    skipped.in_a_row = std::max(skipped.in_a_row, static_cast<int64_t>(sums[3 + ranks + other]));
  }
  const bool skips = skipped.in_a_row > 0 || !skipped.nonfinite_ranks.empty();
  const double peak = *std::max_element(sums.end() - static_cast<int64_t>(ranks), sums.end());
  return {.loss = sums[0] / sums[1],
          .has_loss = sums[1] > 0,
          .batches = sums[2] / static_cast<double>(ranks),
          .skipped = skips ? std::optional(skipped) : std::nullopt,
          .peak_memory_bytes = static_cast<int64_t>(peak)};
}

std::optional<reporting::OuterReport> outer_report(const OuterOptimizer* outer) {
  if (outer == nullptr) {
    return std::nullopt;
  }
  reporting::OuterReport report = {.exchanges = outer->exchanges(),
                                   .joined_exchanges = outer->joined_exchanges(),
                                   .lost_exchanges = outer->lost_exchanges(),
                                   .payload_bytes_sent = outer->payload_bytes_sent(),
                                   .replicas_are_equal = outer->replicas_are_equal(),
                                   .staleness = outer->staleness()};
  if (const auto& round = outer->last_round()) {
    report.round_steps = reporting::OuterReport::RoundSteps{.fewest = round->fewest, .most = round->most};
  }
  return report;
}

reporting::ExchangeReport exchange_of_all_ranks(const ProcessGroupPtr& group, double waited, double seconds) {
  const int64_t ranks = group->getSize();
  std::vector<double> shares(static_cast<size_t>(ranks));
  shares.at(static_cast<size_t>(group->getRank())) = waited / seconds;
  shares = all_reduce_sum(group, shares);
  const auto least = std::ranges::min_element(shares);
  const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
  return {.seconds = *least * seconds,
          .share = *least,
          .slowest_rank = least - shares.begin(),
          .waiting_share = (all - *least) / static_cast<double>(ranks - 1) - *least};
}

}  // namespace narrowcast::training
