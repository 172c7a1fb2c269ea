#include "ops/collectives/mean/group_workspace.h"

#include <c10/util/thread_name.h>

#include <chrono>
#include <thread>
#include <unordered_map>
#include <utility>

namespace narrowcast::collectives {
namespace {

using c10d::ProcessGroup;

constexpr const char* kName = "quantized_all_reduce";
constexpr std::chrono::seconds kLookInterval{1};

// A group cannot be asked to tell when it is destroyed, so that a thread looks after those that have a workspace. It is
// there only while there are any. It owns what it looks at, and is not waited for when the process ends.
class Workspaces : public std::enable_shared_from_this<Workspaces> {
 public:
  std::shared_ptr<GroupWorkspace> of(const c10::intrusive_ptr<ProcessGroup>& group) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_orphans();
    // A weak reference keeps the address from being given to another group.
    auto found = entries_.find(group.get());
    if (found == entries_.end()) {
      auto workspace = std::make_shared<GroupWorkspace>(group->getRank(), group->getSize());
      Entry entry{c10::weak_intrusive_ptr<ProcessGroup>(group), std::move(workspace)};
      found = entries_.emplace(group.get(), std::move(entry)).first;
    }
    look_after_them();
    return found->second.workspace;
  }

 private:
  struct Entry {
    c10::weak_intrusive_ptr<ProcessGroup> group;
    std::shared_ptr<GroupWorkspace> workspace;
  };

  void free_orphans() {
    std::erase_if(entries_, [](const auto& entry) { return entry.second.group.expired(); });
  }

  void look_after_them() {
    if (!looked_after_) {
      std::thread([self = shared_from_this()] {
        c10::setThreadName("nc_workspaces");
        while (self->look()) std::this_thread::sleep_for(kLookInterval);
      }).detach();
      looked_after_ = true;
    }
  }

  // False once there is nothing to look after.
  bool look() {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_orphans();
    looked_after_ = !entries_.empty();
    return looked_after_;
  }

  std::mutex mutex_;
  std::unordered_map<const ProcessGroup*, Entry> entries_;
  bool looked_after_ = false;
};

}  // namespace

std::shared_ptr<GroupWorkspace> GroupWorkspace::of(const c10::intrusive_ptr<ProcessGroup>& group) {
  static const auto workspaces = std::make_shared<Workspaces>();
  return workspaces->of(group);
}

GroupWorkspace::GroupWorkspace(int64_t rank, int64_t world_size)
    : rank_(rank),
      world_size_(world_size),
      memory_{std::make_shared<MessageMemory>(1), std::make_shared<MessageMemory>(1)},
      call_(std::make_shared<AnnouncedMeanJob>(kName, rank, world_size)) {}

const std::shared_ptr<QuantizedMeanJob>& GroupWorkspace::mean(int64_t numel, WireFormat format) {
  if (mean_ == nullptr || mean_->numel() != numel || mean_->format() != format) {
    mean_.reset();  // Before another one's messages need its memory.
    QuantizedMeanOptions options{
        .name = kName, .rank = rank_, .world_size = world_size_, .numel = numel, .format = format};
    mean_ = std::make_shared<QuantizedMeanJob>(std::move(options), memory_);
  }
  return mean_;
}

void GroupWorkspace::forget_call() {
  call_->set_call({}, nullptr);
  if (mean_ != nullptr) mean_->set_call({});
}

}  // namespace narrowcast::collectives
