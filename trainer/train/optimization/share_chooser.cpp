#include "trainer/train/optimization/share_chooser.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include <narrowcast/consensus.h>
#include <narrowcast/errors.h>
#include "trainer/train/data/shares.h"

namespace narrowcast::training {
namespace {

constexpr double kLeastSeconds = 1e-9;  // A rank that a coarse clock has not seen computing is fast, not infinitely so.

}  // namespace

ShareChooser::ShareChooser(ProcessGroupPtr group, int64_t batch, int64_t least)
    : group_(std::move(group)),
      batch_(batch),
      least_(least),
      shares_(static_cast<size_t>(group_->getSize()), batch / group_->getSize()),
      seconds_per_sample_(shares_.size()) {}

void ShareChooser::resume(const std::vector<int64_t>& shares) {
  int64_t left = batch_;
  const bool are_possible = shares.size() == shares_.size() && std::ranges::all_of(shares, [&](int64_t share) {
                              const bool fits = share >= 1 && share <= left;
                              left -= fits ? share : 0;
                              return fits;
                            });
  NARROWCAST_CHECK_INPUT(are_possible && left == 0, "its shares ", data::to_string(shares), " do not divide ", batch_,
                         " samples among ", shares_.size(), " ranks");
  if (std::ranges::min(shares) >= least_) shares_ = shares;
}

std::optional<ChosenShares> ShareChooser::end_step(double seconds) {
  if (steps_ >= 0) (steps_ < half() ? first_half_ : second_half_) += seconds;
  if (++steps_ < 2 * half()) return std::nullopt;
  const auto rank = static_cast<size_t>(group_->getRank());
  const double samples = static_cast<double>(half() * shares_[rank]);
  std::vector<double> own(shares_.size());
  own[rank] = std::max(kLeastSeconds, std::min(first_half_, second_half_) / samples);
  const std::vector<double> measured = all_reduce_sum(group_, own);
  std::vector<double>& per_sample = seconds_per_sample_;
  for (size_t each = 0; each < measured.size(); ++each) {
    per_sample[each] = std::max(measured[each], kMostFall * per_sample[each]);
  }
  steps_ = 0;
  first_half_ = second_half_ = 0;
  std::vector<int64_t> chosen = data::shares_by_speed(batch_, per_sample, least_);
  const bool gains =
      data::seconds_of_slowest(chosen, per_sample) < (1 - kLeastGain) * data::seconds_of_slowest(shares_, per_sample);
  const bool is_first = !std::exchange(has_decided_, true);
  if (gains) shares_ = std::move(chosen);
  return gains || is_first ? std::optional(ChosenShares{shares_, per_sample}) : std::nullopt;
}

}  // namespace narrowcast::training
