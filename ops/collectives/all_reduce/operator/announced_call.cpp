#include "ops/collectives/all_reduce/operator/announced_call.h"

#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <utility>

#include <narrowcast/wire_format.h>
#include "ops/collectives/all_reduce/stream/stream_all_reduce.h"
#include "ops/comm/groups/group.h"
#include "ops/common/per_group.h"

namespace narrowcast::collectives {

using c10d::ProcessGroup;

Announcement announcement_of(const at::Tensor& array, WireFormat format) {
  return {.call = kQuantizedAllReduce,
          .entries = {{"numel of x", std::to_string(array.numel())},
                      {"format", std::string(to_string(format))},
                      {"device of x", c10::DeviceTypeName(array.device().type(), /*lower_case=*/true)}}};
}

AnnouncedAllReduceJob::AnnouncedAllReduceJob(std::string name, int64_t rank, int64_t world_size)
    : name_(std::move(name)), rank_(rank), calls_(rank, world_size) {}

void AnnouncedAllReduceJob::set_call(const Announcement& own, std::shared_ptr<AllReduceJob> mean) {
  calls_.set_own(own);
  mean_ = std::move(mean);
  difference_ = nullptr;
}

void AnnouncedAllReduceJob::check() const {
  if (difference_) std::rethrow_exception(difference_);
}

void AnnouncedAllReduceJob::start(engine::Transport& transport) { calls_.start(transport); }

void AnnouncedAllReduceJob::advance(engine::Transport& transport) {
  calls_.wait(transport);
  difference_ = nullptr;
  try {
    check_announcements(rank_, name_, calls_.messages());
  } catch (const c10::Error&) {
    difference_ = std::current_exception();
    mean_.reset();
  }
  if (mean_ != nullptr) {
    mean_->start(transport);
    mean_->advance(transport);
  }
}

at::Tensor AnnouncedAllReduceJob::finish(engine::Transport& transport) {
  return mean_ == nullptr ? at::Tensor() : std::exchange(mean_, nullptr)->finish(transport);
}

std::shared_ptr<GroupWorkspace> GroupWorkspace::of(const c10::intrusive_ptr<ProcessGroup>& group) {
  static PerGroup<GroupWorkspace> workspaces;
  return workspaces.of(
      group, [&](const auto&) { return std::make_shared<GroupWorkspace>(group->getRank(), group->getSize()); });
}

GroupWorkspace::GroupWorkspace(int64_t rank, int64_t world_size)
    : rank_(rank),
      world_size_(world_size),
      memory_{std::make_shared<MessageMemory>(1), std::make_shared<MessageMemory>(1)},
      call_(std::make_shared<AnnouncedAllReduceJob>(kQuantizedAllReduce, rank, world_size)) {}

const std::shared_ptr<AllReduceJob>& GroupWorkspace::mean(int64_t numel, WireFormat format) {
  if (mean_ == nullptr || mean_->numel() != numel || mean_->format() != format) {
    mean_.reset();  // Its memory is free before the new job's messages need it.
    AllReduceJobOptions options{
        .name = kQuantizedAllReduce, .rank = rank_, .world_size = world_size_, .numel = numel, .format = format};
    mean_ = std::make_shared<AllReduceJob>(std::move(options), memory_);
  }
  return mean_;
}

void GroupWorkspace::forget_call() {
  call_->set_call({}, nullptr);
  if (mean_ != nullptr) mean_->set_call({});
}

void GroupWorkspace::run_on_stream(const Announcement& call, const std::function<void()>& announce,
                                   const std::function<void()>& enqueue) {
  const std::lock_guard<std::mutex> lock(on_stream_);
  const std::string message = to_message(call);
  if (!agreed_.contains(message)) {
    announce();
    agreed_.insert(message);
  }
  enqueue();
}

void announce_call(const Announcement& own, const c10::intrusive_ptr<ProcessGroup>& group, at::Device device,
                   const MakeAllReduceJob& make_mean) {
  if (!moves_cpu_tensors(group)) {
    agree(group, own, device);
    return;
  }
  const auto engine = engine::Engine::for_group(group);
  const auto workspace = GroupWorkspace::of(group);
  const std::lock_guard<std::mutex> lock(workspace->in_use);
  const auto forget = c10::make_scope_exit([&] { workspace->forget_call(); });
  workspace->call()->set_call(own, make_mean ? make_mean(*workspace) : nullptr);
  engine->submit(workspace->call())->waitAndThrow();
  workspace->call()->check();
}

void average_on_stream(const at::Tensor& x, WireFormat format, const c10::intrusive_ptr<ProcessGroup>& group) {
  const Announcement call = announcement_of(x, format);
  const AllReduceJobOptions options{.name = kQuantizedAllReduce,
                                    .rank = group->getRank(),
                                    .world_size = group->getSize(),
                                    .numel = x.numel(),
                                    .format = format};
  GroupWorkspace::of(group)->run_on_stream(
      call, [&] { announce_call(call, group, x.device(), {}); },
      [&] {
        StreamAllReduce({group}, options, x.device()).enqueue({x, {}, {}});
      });
}

}  // namespace narrowcast::collectives
