#include "ops/collectives/broken_groups.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "ops/collectives/split_check.h"

namespace narrowcast::collectives {
namespace {

using Group = SplitGroup::Group;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

// Of all groups of the process.
struct Groups {
  struct Split {
    const c10d::ProcessGroup* parent = nullptr;
    Group group;
  };

  std::mutex mutex;
  std::vector<Split> splits;
  std::map<const c10d::ProcessGroup*, std::string> broken_off;  // why

  // `group` and all that were split off it, or off such a one. With the mutex.
  std::vector<Group> family_of(const Group& group) const {
    std::vector<Group> family = {group};
    for (size_t i = 0; i < family.size(); ++i) {
      for (const Split& split : splits) {
        if (split.parent == family[i].get()) {
          family.push_back(split.group);
        }
      }
    }
    return family;
  }
};

Groups& groups() {
  static Groups instance;
  return instance;
}

// One may be that of several devices.
std::vector<BackendPtr> backends_of(const std::vector<Group>& family) {
  std::vector<BackendPtr> backends;
  for (const Group& group : family) {
    for (const at::Device& device : group->getDeviceTypes()) {
      backends.push_back(group->getBackend(device.type()));
    }
  }
  std::set<const c10d::Backend*> seen;
  std::erase_if(backends, [&](const BackendPtr& backend) { return !seen.insert(backend.get()).second; });
  return backends;
}

void abort_all(const std::vector<Group>& family) {
  std::vector<std::thread> threads;
  for (const BackendPtr& backend : backends_of(family)) {
    threads.emplace_back([backend] {
      try {
        backend->abort();
      } catch (const std::exception&) {
        // It cannot be ended better than that, and the others are to be.
      }
    });
  }
  std::ranges::for_each(threads, &std::thread::join);
}

std::string failure_of(c10d::Backend& backend) {
  try {
    switch (backend.getError()) {
      case c10d::ErrorType::SUCCESS:
        return "";
      case c10d::ErrorType::TIMEOUT:
        return "a collective timed out";
      default:
        return "a collective failed";
    }
  } catch (const c10::Error&) {
    return "";  // It has none.
  }
}

}  // namespace

void break_off(const Group& group, const std::string& why) {
  std::vector<Group> family;
  {
    const std::lock_guard<std::mutex> lock(groups().mutex);
    family = groups().family_of(group);
    std::erase_if(family, [&](const Group& one) { return !groups().broken_off.emplace(one.get(), why).second; });
  }
  abort_all(family);
}

std::string why_broken_off(const Group& group) {
  const std::lock_guard<std::mutex> lock(groups().mutex);
  const auto found = groups().broken_off.find(group.get());
  return found == groups().broken_off.end() ? "" : found->second;
}

std::string failure_in_backends(const Group& group) {
  std::vector<Group> family;
  {
    const std::lock_guard<std::mutex> lock(groups().mutex);
    family = groups().family_of(group);
  }
  for (const BackendPtr& backend : backends_of(family)) {
    if (std::string failure = failure_of(*backend); !failure.empty()) {
      return failure;
    }
  }
  return "";
}

void forget_broken_off(const Group& group) {
  const std::lock_guard<std::mutex> lock(groups().mutex);
  groups().broken_off.erase(group.get());
}

// By another constructor first, so that the destructor ends what the check refuses.
SplitGroup::SplitGroup(const Group& parent, Group group, const std::vector<int64_t>& ranks) : SplitGroup() {
  group_ = std::move(group);
  {
    const std::lock_guard<std::mutex> lock(groups().mutex);
    groups().splits.push_back({.parent = parent.get(), .group = group_});
  }
  if (const std::string why = why_broken_off(parent); !why.empty()) {
    break_off(group_, why);
    return;  // Nothing is to be sent there any more.
  }
  run_split_check(parent, group_, ranks);
}

SplitGroup& SplitGroup::operator=(SplitGroup&& other) noexcept {
  std::swap(group_, other.group_);
  return *this;
}

SplitGroup::~SplitGroup() { end(); }

// A destructor has nobody to tell.
void SplitGroup::end() noexcept {
  if (group_ == nullptr) {
    return;
  }
  bool was_broken_off = false;
  {
    const std::lock_guard<std::mutex> lock(groups().mutex);
    std::erase_if(groups().splits, [&](const Groups::Split& split) { return split.group == group_; });
    was_broken_off = groups().broken_off.erase(group_.get()) > 0;
  }
  try {
    if (was_broken_off) {
      return;
    }
    if (std::uncaught_exceptions() > 0) {
      abort_all({group_});
    } else {
      group_->shutdown();
    }
  } catch (const std::exception&) {
  }
}

}  // namespace narrowcast::collectives
