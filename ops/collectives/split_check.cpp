#include "ops/collectives/split_check.h"

#include <mutex>
#include <unordered_map>
#include <utility>

namespace narrowcast::collectives {
namespace {

using c10d::ProcessGroup;

// Of all groups of the process that have one. The weak reference keeps a group's address from being another one's.
struct Checks {
  struct Entry {
    c10::weak_intrusive_ptr<ProcessGroup> group;
    SplitCheck check;
  };

  std::mutex mutex;
  std::unordered_map<const ProcessGroup*, Entry> entries;
};

Checks& checks() {
  static Checks instance;
  return instance;
}

SplitCheck check_of(const ProcessGroup* group) {
  const std::lock_guard<std::mutex> lock(checks().mutex);
  const auto found = checks().entries.find(group);
  return found == checks().entries.end() ? SplitCheck() : found->second.check;
}

}  // namespace

void check_splits(const c10::intrusive_ptr<ProcessGroup>& group, SplitCheck check) {
  const std::lock_guard<std::mutex> lock(checks().mutex);
  std::erase_if(checks().entries, [](const auto& entry) { return entry.second.group.expired(); });
  checks().entries.insert_or_assign(group.get(),
                                    Checks::Entry{c10::weak_intrusive_ptr<ProcessGroup>(group), std::move(check)});
}

void run_split_check(const c10::intrusive_ptr<ProcessGroup>& parent, const c10::intrusive_ptr<ProcessGroup>& split) {
  if (const SplitCheck check = check_of(parent.get())) {
    check(split);
    check_splits(split, check);
  }
}

}  // namespace narrowcast::collectives
