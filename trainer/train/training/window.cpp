#include "trainer/train/training/window.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include <narrowcast/consensus.h>

#include "trainer/base/process/process_memory.h"
#include "trainer/train/training/optimizer_steps.h"
#include "trainer/train/training/training_state.h"

namespace narrowcast::training {

WindowOfRank take_window(OptimizerSteps& steps, Counters& counters) {
  const WindowOfRank window = {.loss = steps.window_loss(),
                               .steps = std::exchange(counters.window_steps, 0),
                               .batches = std::exchange(counters.window_batches, 0),
                               .nonfinite_steps = steps.take_nonfinite_steps(),
                               .skipped_in_a_row = counters.skipped_in_a_row.value_or(0),
                               .peak_memory_bytes = program::peak_memory_bytes()};
  steps.set_window_loss(0);
  return window;
}

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

OuterOptimizer::Notes WindowOfRounds::notes_of(const WindowOfRank& own, int64_t rank,
                                               const std::function<int()>& asked) {
  return {own.loss,
          static_cast<double>(own.steps),
          static_cast<double>(own.batches),
          static_cast<double>(own.nonfinite_steps),
          static_cast<double>(own.skipped_in_a_row),
          static_cast<double>(own.peak_memory_bytes),
          static_cast<double>(rank),
          static_cast<double>(asked ? asked() : 0)};
}

OuterOptimizer::Notes WindowOfRounds::combined(const std::vector<OuterOptimizer::Notes>& ranks) {
  OuterOptimizer::Notes sum = {};
  bool newcomers = false;
  for (const OuterOptimizer::Notes& notes : ranks) {
    for (const size_t i : {0, 1, 2}) sum[i] += notes[i];
    if (sum[3] == 0 && notes[3] > 0) {
      sum[3] = notes[3];
      sum[6] = notes[6];
    }
    for (const size_t i : {4, 5}) sum[i] = std::max(sum[i], notes[i]);
    newcomers = newcomers || notes[7] == recovery::kNewcomers;
    if (notes[7] != recovery::kNewcomers) sum[7] = std::max(sum[7], notes[7]);
  }
  if (sum[7] == 0 && newcomers) sum[7] = recovery::kNewcomers;
  return sum;
}

void WindowOfRounds::add(const OuterOptimizer::Round& round, reporting::TrainingObserver* observer) {
  for (size_t i = 0; i < round.notes.size(); ++i) {
    const OuterOptimizer::Notes& notes = round.notes[i];
    sum_.loss += notes[0];
    sum_.steps += static_cast<int64_t>(notes[1]);
    sum_.batches += static_cast<int64_t>(notes[2]);
    if (notes[3] > 0) nonfinite_ranks_.push_back(static_cast<int64_t>(notes[6]));
    skipped_in_a_row_[round.groups[i]] = static_cast<int64_t>(notes[4]);
    sum_.peak_memory_bytes = std::max(sum_.peak_memory_bytes, static_cast<int64_t>(notes[5]));
    const auto signal = static_cast<int>(notes[7]);
    newcomers_ = newcomers_ || signal == recovery::kNewcomers;
    if (signal != recovery::kNewcomers) signal_ = std::max(signal_, signal);
  }
  if (round.steps > last_steps_) count_groups(round, observer);
  last_steps_ = round.steps;
}

void WindowOfRounds::count_groups(const OuterOptimizer::Round& round, reporting::TrainingObserver* observer) {
  for (size_t i = 0; i < missed_.size(); ++i) {
    const auto group = static_cast<int64_t>(i);
    const bool takes_part = std::ranges::binary_search(round.groups, group);
    rounds_by_group_[i] += takes_part ? 1 : 0;
    missed_[i] += takes_part ? 0 : 1;
    const bool is_new = takes_part ? missed_[i] >= kMissedRounds : missed_[i] == kMissedRounds;
    if (is_new && observer != nullptr) {
      observer->on_absence({.step = round.steps, .group = group, .missed = missed_[i], .is_back = takes_part});
    }
    if (takes_part) missed_[i] = 0;
  }
}

Window WindowOfRounds::take_window() {
  std::ranges::sort(nonfinite_ranks_);
  nonfinite_ranks_.erase(std::ranges::unique(nonfinite_ranks_).begin(), nonfinite_ranks_.end());
  const WindowOfRank sum = std::exchange(sum_, {});
  reporting::SkippedReport skipped;
  for (const auto& [group, in_a_row] : std::exchange(skipped_in_a_row_, {})) {
    skipped.in_a_row = std::max(skipped.in_a_row, in_a_row);
  }
  skipped.nonfinite_ranks = std::exchange(nonfinite_ranks_, {});
  const bool skips = skipped.in_a_row > 0 || !skipped.nonfinite_ranks.empty();
  return {.loss = sum.loss / static_cast<double>(sum.steps),
          .has_loss = sum.steps > 0,
          .batches = static_cast<double>(sum.batches) / static_cast<double>(ranks_),
          .skipped = skips ? std::optional(skipped) : std::nullopt,
          .peak_memory_bytes = sum.peak_memory_bytes,
          .rounds_by_group = std::exchange(rounds_by_group_, std::vector<int64_t>(missed_.size(), 0))};
}

reporting::BucketsReport buckets_report(int64_t step, const BucketChoice& choice) {
  reporting::BucketsReport report{.step = step, .chosen = {}, .backward_seconds = choice.backward_seconds};
  for (const BucketChoice::Size& size : choice.sizes) {
    report.sizes.push_back({.cap_mb = size.cap_mb, .buckets = size.buckets, .seconds_left = size.seconds_left});
  }
  report.chosen = report.sizes.at(static_cast<size_t>(choice.chosen));
  return report;
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

reporting::StepReport step_report(OptimizerSteps& steps, const Counters& counters, const Window& window, double seconds,
                                  int64_t units_per_step) {
  reporting::StepReport report = {.step = counters.step,
                                  .loss = counters.training_loss,
                                  .learning_rate = steps.learning_rate_of(counters.step),
                                  .gradient_norm = counters.gradient_norm,
                                  .units_per_second = window.batches * static_cast<double>(units_per_step) / seconds,
                                  .seconds = counters.seconds,
                                  .payload_bytes_sent = steps.payload_bytes_sent(),
                                  .measuring_bytes_sent = steps.measuring_bytes_sent(),
                                  .compression = steps.model().compression(),
                                  .peak_memory_bytes = window.peak_memory_bytes,
                                  .skipped_steps = counters.skipped_steps,
                                  .skipped = window.skipped,
                                  .outer = outer_report(steps.outer())};
  if (report.outer) report.outer->rounds_by_group = window.rounds_by_group;
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
