#include "ops/collectives/split_check.h"

#include <mutex>
#include <numeric>
#include <unordered_map>
#include <utility>
#include <vector>

namespace narrowcast::collectives {
namespace {

using c10d::ProcessGroup;

// What is to hold of what is split off a group.
struct Split {
  SplitCheck check;
  std::vector<int64_t> ranks;  // The group's, in the one that the check was given for.
};

// Of all groups of the process that have one. The weak reference keeps a group's address from being another one's.
struct Checks {
  struct Entry {
    c10::weak_intrusive_ptr<ProcessGroup> group;
    Split split;
  };

  std::mutex mutex;
  std::unordered_map<const ProcessGroup*, Entry> entries;
};

Checks& checks() {
  static Checks instance;
  return instance;
}

Split splits_of(const ProcessGroup* group) {
  const std::lock_guard<std::mutex> lock(checks().mutex);
  const auto found = checks().entries.find(group);
  return found == checks().entries.end() ? Split() : found->second.split;
}

void keep(const c10::intrusive_ptr<ProcessGroup>& group, Split split) {
  const std::lock_guard<std::mutex> lock(checks().mutex);
  std::erase_if(checks().entries, [](const auto& entry) { return entry.second.group.expired(); });
  checks().entries.insert_or_assign(group.get(),
                                    Checks::Entry{c10::weak_intrusive_ptr<ProcessGroup>(group), std::move(split)});
}

}  // namespace

void check_splits(const c10::intrusive_ptr<ProcessGroup>& group, SplitCheck check) {
  std::vector<int64_t> all(static_cast<size_t>(group->getSize()));
  std::iota(all.begin(), all.end(), 0);
  keep(group, {std::move(check), std::move(all)});
}

void run_split_check(const c10::intrusive_ptr<ProcessGroup>& parent, const c10::intrusive_ptr<ProcessGroup>& split,
                     const std::vector<int64_t>& ranks) {
  Split own = splits_of(parent.get());
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
