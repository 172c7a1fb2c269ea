#include "trainer/train/data/shares.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "ops/common/text.h"

namespace narrowcast::data {
namespace {

constexpr const char *kEqual = "equal", *kAuto = "auto";

}  // namespace

Shares parse_shares(const std::string& text) {
  if (text == kEqual) return {};
  if (text == kAuto) return {.kind = Shares::Kind::kAuto};
  Shares shares = {.kind = Shares::Kind::kGiven};
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  for (const std::string& part : parts) {
    int64_t samples = 0;
    TORCH_CHECK_VALUE(absl::SimpleAtoi(part, &samples), "shares: must be ", kEqual, ", ", kAuto,
                      " or a number of samples for each rank such as 24,8, but is ", in_quotes(text));
    TORCH_CHECK_VALUE(samples >= 1, "shares: each rank needs at least 1 sample, but one has ", samples, " in ",
                      in_quotes(text));
    shares.samples.push_back(samples);
  }
  return shares;
}

std::string to_string(const std::vector<int64_t>& samples) { return absl::StrJoin(samples, ","); }

std::string to_string(const Shares& shares) {
  switch (shares.kind) {
    case Shares::Kind::kEqual:
      return kEqual;
    case Shares::Kind::kAuto:
      return kAuto;
    case Shares::Kind::kGiven:
      break;
  }
  return to_string(shares.samples);
}

void check_given_shares(const BatchPlanOptions& options) {
  const std::string text = to_string(options.shares);
  TORCH_CHECK_VALUE(std::ssize(options.shares) == options.world_size, "shares: must have a number for each of the ",
                    options.world_size, " ranks, but has ", options.shares.size(), ": ", text);
  int64_t sum = 0;
  for (size_t rank = 0; rank < options.shares.size(); ++rank) {
    const int64_t share = options.shares[rank];
    TORCH_CHECK_VALUE(share >= options.accumulation_steps, "shares: each must be at least ", options.accumulation_steps,
                      ", a sample for each of accumulation_steps, but rank ", rank, " has ", share, " in ", text);
    TORCH_CHECK_VALUE(share <= options.global_batch - sum, "shares: must add up to batch_size, which is ",
                      options.global_batch, ", but add up to more: ", text);
    sum += share;
  }
  TORCH_CHECK_VALUE(sum == options.global_batch, "shares: must add up to batch_size, which is ", options.global_batch,
                    ", but add up to ", sum, ": ", text);
}

std::vector<int64_t> shares_by_speed(int64_t global_batch, const std::vector<double>& seconds_per_sample,
                                     int64_t least) {
  const size_t ranks = seconds_per_sample.size();
  TORCH_CHECK_VALUE(global_batch / least >= static_cast<int64_t>(ranks), "shares: a batch of ", global_batch,
                    " cannot give ", least, " samples to each of ", ranks, " ranks");
  std::vector<int64_t> shares(ranks, least);
  std::vector<double> ideal(ranks, static_cast<double>(least));
  // A rank whose part would be below the least gets the least, and the others share the rest.
  std::vector<bool> is_open(ranks, true);
  for (bool changed = true; changed;) {
    changed = false;
    int64_t left = global_batch;
    double speed = 0;
    for (size_t rank = 0; rank < ranks; ++rank) {
      left -= is_open[rank] ? 0 : least;
      speed += is_open[rank] ? 1 / seconds_per_sample[rank] : 0;
    }
    for (size_t rank = 0; rank < ranks; ++rank) {
      if (!is_open[rank]) continue;
      ideal[rank] = static_cast<double>(left) / seconds_per_sample[rank] / speed;
      if (ideal[rank] < static_cast<double>(least)) {
        ideal[rank] = static_cast<double>(least);
        is_open[rank] = false;
        changed = true;
        break;
      }
    }
  }
  std::vector<size_t> by_remainder(ranks);
  std::iota(by_remainder.begin(), by_remainder.end(), size_t{0});
  for (size_t rank = 0; rank < ranks; ++rank) {
    shares[rank] = std::max(least, static_cast<int64_t>(std::floor(ideal[rank])));
  }
  std::ranges::stable_sort(by_remainder, std::greater<>(),
                           [&](size_t rank) { return ideal[rank] - static_cast<double>(shares[rank]); });
  const int64_t left = global_batch - std::accumulate(shares.begin(), shares.end(), int64_t{0});
  for (int64_t i = 0; i < left; ++i) {
    ++shares[by_remainder[static_cast<size_t>(i) % ranks]];
  }
  return shares;
}

double seconds_of_slowest(const std::vector<int64_t>& shares, const std::vector<double>& seconds_per_sample) {
  double most = 0;
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    most = std::max(most, static_cast<double>(shares[rank]) * seconds_per_sample[rank]);
  }
  return most;
}

}  // namespace narrowcast::data
