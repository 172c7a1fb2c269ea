#include "ops/comm/groups/split_check.h"

#include <memory>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "ops/common/per_group.h"

namespace narrowcast::collectives {
namespace {

using c10d::ProcessGroup;

// The check of the groups that are split off a group.
struct Split {
  SplitCheck check;
  std::vector<int64_t> ranks;  // The group's ranks, numbered in the group for which the check was set.
};

struct KeptSplit {
  std::mutex mutex;
  Split split;
};

std::shared_ptr<KeptSplit> kept_of(const c10::intrusive_ptr<ProcessGroup>& group) {
  static PerGroup<KeptSplit> splits;
  return splits.of(group);
}

void keep(const c10::intrusive_ptr<ProcessGroup>& group, Split split) {
  const auto kept = kept_of(group);
  const std::lock_guard<std::mutex> lock(kept->mutex);
  kept->split = std::move(split);
}

Split split_of(const c10::intrusive_ptr<ProcessGroup>& group) {
  const auto kept = kept_of(group);
  const std::lock_guard<std::mutex> lock(kept->mutex);
  return kept->split;
}

}  // namespace

void check_splits(const c10::intrusive_ptr<ProcessGroup>& group, SplitCheck check) {
  std::vector<int64_t> all(static_cast<size_t>(group->getSize()));
  std::iota(all.begin(), all.end(), 0);
  keep(group, {std::move(check), std::move(all)});
}

void run_split_check(const c10::intrusive_ptr<ProcessGroup>& parent, const c10::intrusive_ptr<ProcessGroup>& split,
                     const std::vector<int64_t>& ranks) {
  Split own = split_of(parent);
  if (!own.check) {
    return;
  }
  if (!ranks.empty()) {
    std::vector<int64_t> of_split;
    for (const int64_t rank : ranks) {
      of_split.push_back(own.ranks.at(static_cast<size_t>(rank)));
    }
    own.ranks = std::move(of_split);
  }
  own.check(split, own.ranks);
  keep(split, std::move(own));
}

}  // namespace narrowcast::collectives
