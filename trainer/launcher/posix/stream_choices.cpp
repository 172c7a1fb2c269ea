#include "trainer/launcher/posix/stream_choices.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace narrowcast::launcher {
namespace {

std::vector<std::string> split(const std::string& list) { return absl::StrSplit(list, ','); }

std::optional<Streams> streams_of(const std::string& digit) {
  int64_t bits = 0;
  if (!absl::SimpleAtoi(digit, &bits) || bits < 0 || bits > 3) {
    return std::nullopt;
  }
  return Streams{.output = (bits & 1) != 0, .error = (bits & 2) != 0};
}

std::optional<int64_t> local_rank_of(const std::string& text) {
  int64_t rank = 0;
  return absl::SimpleAtoi(text, &rank) && rank >= 0 ? std::optional<int64_t>(rank) : std::nullopt;
}

void check_rank(const std::string& flag, int64_t rank, int64_t nproc) {
  TORCH_CHECK_VALUE(rank < nproc, flag, " names local rank ", rank, ", but --nproc_per_node is ", nproc);
}

StreamTarget target(bool redirected, bool teed, bool shown_rank, const std::filesystem::path& file) {
  return {.shown = shown_rank && (teed || !redirected), .file = redirected || teed ? file : ""};
}

}  // namespace

StreamChoices StreamChoices::parse(const std::string& flag, const std::string& text) {
  StreamChoices choices;
  if (const auto all = streams_of(text)) {
    choices.all_ = *all;
    return choices;
  }
  for (const std::string& entry : split(text)) {
    const std::vector<std::string> parts = absl::StrSplit(entry, ':');
    const auto rank = local_rank_of(parts.front());
    const auto streams = streams_of(parts.back());
    TORCH_CHECK_VALUE(parts.size() == 2 && rank && streams, flag, "=", text,
                      ": must be 0 (none), 1 (standard output), 2 (standard error) or 3 (both), or such a number for "
                      "each local rank, like 0:3,1:2");
    TORCH_CHECK_VALUE(choices.by_rank_.emplace(*rank, *streams).second, flag, "=", text, ": names local rank ", *rank,
                      " twice");
  }
  return choices;
}

Streams StreamChoices::of(int64_t local_rank) const {
  const auto found = by_rank_.find(local_rank);
  return found == by_rank_.end() ? all_ : found->second;
}

bool StreamChoices::empty() const {
  const auto none = [](const Streams& streams) { return !streams.output && !streams.error; };
  return none(all_) &&
         std::all_of(by_rank_.begin(), by_rank_.end(), [&](const auto& entry) { return none(entry.second); });
}

std::set<int64_t> parse_local_ranks(const std::string& flag, const std::string& text) {
  std::set<int64_t> ranks;
  for (const std::string& entry : text.empty() ? std::vector<std::string>() : split(text)) {
    const auto rank = local_rank_of(entry);
    TORCH_CHECK_VALUE(rank.has_value(), flag, "=", text, ": must be local ranks like 0,2");
    ranks.insert(*rank);
  }
  return ranks;
}

void check_local_ranks(const OutputChoices& choices, int64_t nproc) {
  check_rank("--redirects", choices.redirects.largest_rank(), nproc);
  check_rank("--tee", choices.tee.largest_rank(), nproc);
  check_rank("--local_ranks_filter", choices.shown_ranks.empty() ? -1 : *choices.shown_ranks.rbegin(), nproc);
}

WorkerTargets targets_for(const OutputChoices& choices, int64_t local_rank, const std::filesystem::path& folder) {
  const Streams redirected = choices.redirects.of(local_rank);
  const Streams teed = choices.tee.of(local_rank);
  const bool shown = choices.shown_ranks.empty() || choices.shown_ranks.contains(local_rank);
  return {.output = target(redirected.output, teed.output, shown, folder / "stdout.log"),
          .error = target(redirected.error, teed.error, shown, folder / "stderr.log")};
}

}  // namespace narrowcast::launcher
