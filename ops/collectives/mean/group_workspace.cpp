#include "ops/collectives/mean/group_workspace.h"

#include <unordered_map>
#include <utility>

namespace narrowcast::collectives {
namespace {

using c10d::ProcessGroup;

constexpr const char* kName = "quantized_all_reduce";

}  // namespace

std::shared_ptr<GroupWorkspace> GroupWorkspace::of(const c10::intrusive_ptr<ProcessGroup>& group) {
  // The weak reference keeps the group's address from being another one's.
  struct Entry {
    c10::weak_intrusive_ptr<ProcessGroup> group;
    std::shared_ptr<GroupWorkspace> workspace;
  };
  static std::mutex mutex;
  static std::unordered_map<const ProcessGroup*, Entry> entries;
  const std::lock_guard<std::mutex> lock(mutex);
  std::erase_if(entries, [](const auto& entry) { return entry.second.group.expired(); });
  auto found = entries.find(group.get());
  if (found == entries.end()) {
    auto workspace = std::make_shared<GroupWorkspace>(group->getRank(), group->getSize());
    Entry entry{c10::weak_intrusive_ptr<ProcessGroup>(group), std::move(workspace)};
    found = entries.emplace(group.get(), std::move(entry)).first;
  }
  return found->second.workspace;
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
