#include "ops/comm/groups/broken_groups.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "ops/comm/groups/group.h"
#include "ops/comm/groups/split_check.h"
#include "ops/common/per_group.h"

namespace narrowcast::collectives {

// Whether a group is broken off, and its splits.
struct GroupFate {
  std::mutex mutex;
  std::string why_broken_off;                                  // Empty if it is not.
  std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> splits;  // Splits that still exist.
};

namespace {

using Group = SplitGroup::Group;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

std::shared_ptr<GroupFate> fate_of(const Group& group) {
  static PerGroup<GroupFate> fates;
  return fates.of(group);
}

// The backends of all groups, each once: a backend may serve several devices.
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
        // This backend cannot be ended better. The others must be ended as well.
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
    return "";  // This backend does not report errors.
  }
}

}  // namespace

// A group is marked and its splits are read under one lock, so a group that is split off later finds the mark.
void break_off(const Group& group, const std::string& why) {
  std::vector<Group> family = {group};
  std::vector<Group> newly_broken;
  for (size_t i = 0; i < family.size(); ++i) {
    const auto fate = fate_of(family[i]);
    const std::lock_guard<std::mutex> lock(fate->mutex);
    if (fate->why_broken_off.empty()) {
      fate->why_broken_off = why;
      newly_broken.push_back(family[i]);
    }
    family.insert(family.end(), fate->splits.begin(), fate->splits.end());
  }
  abort_all(newly_broken);
}

std::string why_broken_off(const Group& group) {
  const auto fate = fate_of(group);
  const std::lock_guard<std::mutex> lock(fate->mutex);
  return fate->why_broken_off;
}

std::string failure_in_backends(const Group& group) {
  std::vector<Group> family = {group};
  for (size_t i = 0; i < family.size(); ++i) {
    const auto fate = fate_of(family[i]);
    const std::lock_guard<std::mutex> lock(fate->mutex);
    family.insert(family.end(), fate->splits.begin(), fate->splits.end());
  }
  for (const BackendPtr& backend : backends_of(family)) {
    if (std::string failure = failure_of(*backend); !failure.empty()) {
      return failure;
    }
  }
  return "";
}

// The reason is known before kernels are ended, so a wait that ends with them finds it.
void wait_for_results(const Group& group) {
  if (!moves_tensors_on(at::kCUDA, group)) {
    return;
  }
  if (c10::impl::hasDeviceGuardImpl(at::kCUDA)) {  // Else this process cannot have enqueued anything.
    const c10::impl::VirtualGuardImpl gpus(at::kCUDA);
    const std::optional<at::Device> bound = group->getBackend(at::kCUDA)->getBoundDeviceId();
    gpus.synchronizeDevice(bound.value_or(gpus.getDevice()).index());
  }
  const std::string why = why_broken_off(group);
  TORCH_CHECK_WITH(DistBackendError, why.empty(), why);
  const std::string failure = failure_in_backends(group);
  TORCH_CHECK_WITH(DistBackendError, failure.empty(), "rank ", group->getRank(), ": ", failure);
}

// Delegates to the default constructor, so that the destructor runs if the check throws.
SplitGroup::SplitGroup(const Group& parent, Group group, const std::vector<int64_t>& ranks) : SplitGroup() {
  group_ = std::move(group);
  parent_ = fate_of(parent);
  std::string why;
  {
    const std::lock_guard<std::mutex> lock(parent_->mutex);
    parent_->splits.push_back(group_);
    why = parent_->why_broken_off;
  }
  if (!why.empty()) {
    break_off(group_, why);
    return;  // Nothing may be sent in this group any more.
  }
  run_split_check(parent, group_, ranks);
}

SplitGroup& SplitGroup::operator=(SplitGroup&& other) noexcept {
  std::swap(group_, other.group_);
  std::swap(parent_, other.parent_);
  return *this;
}

SplitGroup::~SplitGroup() { end(); }

// Errors are ignored: a destructor cannot report them.
void SplitGroup::end() noexcept {
  if (group_ == nullptr) {
    return;
  }
  try {
    {
      const std::lock_guard<std::mutex> lock(parent_->mutex);
      std::erase(parent_->splits, group_);
    }
    if (!why_broken_off(group_).empty()) {
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
