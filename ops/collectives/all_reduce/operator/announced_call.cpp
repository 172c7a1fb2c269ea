#include "ops/collectives/all_reduce/operator/announced_call.h"

#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <utility>

#include <narrowcast/wire_format.h>
#include "ops/collectives/all_reduce/stream/stream_all_reduce.h"
#include "ops/comm/groups/arguments.h"
#include "ops/comm/groups/group.h"
#include "ops/common/per_group.h"

namespace narrowcast::collectives {

using c10d::ProcessGroup;
using node::FoundNodes;

Announcement announcement_of(const at::Tensor& array, const AllReduceCallOptions& options) {
  return {.call = kQuantizedAllReduce,
          .entries = {{"numel of x", std::to_string(array.numel())},
                      {"format", std::string(to_string(options.format))},
                      {"levels", std::string(to_string(options.levels))},
                      {"device of x", c10::DeviceTypeName(array.device().type(), /*lower_case=*/true)}}};
}

AnnouncedJob::AnnouncedJob(int64_t rank, int64_t world_size) : rank_(rank), calls_(rank, world_size) {}

void AnnouncedJob::set_call(const Announcement& own, std::shared_ptr<engine::Job> job) {
  name_ = own.call;
  calls_.set_own(own);
  job_ = std::move(job);
  difference_ = nullptr;
}

void AnnouncedJob::check() const {
  if (difference_) std::rethrow_exception(difference_);
}

void AnnouncedJob::start(engine::Transport& transport) {
  is_forwarded_ = false;
  is_compared_ = false;
  calls_.start(transport);
  if (job_ != nullptr) job_->prepare();
}

int64_t AnnouncedJob::advances() const {
  return (calls_.has_forward() ? 2 : 1) + (job_ == nullptr ? 0 : job_->advances());
}

bool AnnouncedJob::is_ready() { return is_compared_ && (job_ == nullptr || job_->is_ready()); }

void AnnouncedJob::advance(engine::Transport& transport) {
  if (is_compared_) {
    if (job_ != nullptr) job_->advance(transport);
    return;
  }
  if (calls_.has_forward() && !std::exchange(is_forwarded_, true)) {
    calls_.forward(transport);
    return;
  }
  compare(transport);
  if (job_ != nullptr) job_->start(transport);
  is_compared_ = true;
}

void AnnouncedJob::compare(engine::Transport& transport) {
  calls_.wait(transport);
  difference_ = nullptr;
  try {
    check_announcements(rank_, name_, calls_.messages());
  } catch (const c10::Error&) {
    difference_ = std::current_exception();
    if (job_ != nullptr) job_->cancel();
    job_.reset();
  }
}

at::Tensor AnnouncedJob::finish(engine::Transport& transport) {
  return job_ == nullptr ? at::Tensor() : std::exchange(job_, nullptr)->finish(transport);
}

void AnnouncedJob::give_up() {
  calls_.give_up();
  if (job_ != nullptr) job_->give_up();
}

namespace {

// Without a backend for CPU tensors, the nodes of this group alone.
std::shared_ptr<NodesOfBackend> nodes_of_backend(const c10::intrusive_ptr<ProcessGroup>& group) {
  static PerOwner<c10d::Backend, NodesOfBackend> nodes;
  if (!moves_cpu_tensors(group)) return std::make_shared<NodesOfBackend>();
  return nodes.of(group->getBackend(c10::DeviceType::CPU));
}

}  // namespace

std::shared_ptr<GroupWorkspace> GroupWorkspace::of(const c10::intrusive_ptr<ProcessGroup>& group) {
  static PerGroup<GroupWorkspace> workspaces;
  workspaces.free_ended();  // They hold the nodes of their backends.
  auto nodes = nodes_of_backend(group);
  auto workspace = workspaces.of(group, [&](const PerGroup<GroupWorkspace>::Values& /*others*/) {
    return std::make_shared<GroupWorkspace>(group->getRank(), group->getSize(), std::move(nodes));
  });
  node::free_ended_groups();  // Their nodes may be held by workspaces and backends that have ended.
  return workspace;
}

GroupWorkspace::GroupWorkspace(int64_t rank, int64_t world_size, std::shared_ptr<NodesOfBackend> nodes)
    : rank_(rank),
      world_size_(world_size),
      memory_{std::make_shared<MessageMemory>(1), std::make_shared<MessageMemory>(1)},
      call_(std::make_shared<AnnouncedJob>(rank, world_size)),
      nodes_(std::move(nodes)) {}

const std::shared_ptr<AllReduceJob>& GroupWorkspace::mean(int64_t numel, WireFormat format,
                                                          const std::shared_ptr<const FoundNodes>& nodes) {
  if (mean_ == nullptr || mean_->numel() != numel || mean_->format() != format || mean_->nodes() != nodes) {
    mean_.reset();  // Its memory is free before the new job's messages need it.
    AllReduceJobOptions options{.name = kQuantizedAllReduce,
                                .rank = rank_,
                                .world_size = world_size_,
                                .numel = numel,
                                .format = format,
                                .link = LinkCost().shared_by(nodes == nullptr ? 1 : nodes->layout.segments()),
                                .nodes = nodes};
    mean_ = std::make_shared<AllReduceJob>(std::move(options), memory_);
  }
  return mean_;
}

const std::shared_ptr<MessageMemory>& GroupWorkspace::messages() {
  mean_.reset();
  return memory_.narrow;
}

void GroupWorkspace::run(engine::Engine& engine, const Announcement& own, std::shared_ptr<engine::Job> job) {
  const auto forget = c10::make_scope_exit([&] {
    call_->set_call({}, nullptr);
    if (mean_ != nullptr) mean_->set_call({});
  });
  call_->set_nodes(nodes());
  call_->set_call(own, std::move(job));
  try {
    engine.submit(call_)->waitAndThrow();
  } catch (...) {
    call_->give_up();
    mean_.reset();  // An exchange that is destroyed in progress gives up the node's memory.
    throw;
  }
  call_->check();
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

void announce_call(const Announcement& own, const c10::intrusive_ptr<ProcessGroup>& group, at::Device device) {
  if (!moves_cpu_tensors(group)) {
    agree(group, own, device);
    return;
  }
  const auto engine = engine::Engine::for_group(group);
  const auto workspace = GroupWorkspace::of(group);
  const std::lock_guard<std::mutex> lock(workspace->in_use);
  workspace->run(*engine, own, nullptr);
}

void check_together(const std::string& call, const c10::intrusive_ptr<ProcessGroup>& group,
                    const std::function<void()>& check) {
  TORCH_CHECK_VALUE(group, "group must be a process group, but is null");
  const auto refusal = refusal_of(check);
  if (refusal.has_value()) {
    refuse_together(*refusal, [&] { announce_call({.call = call, .refusal = refusal}, group, any_device(group)); });
  }
}

void check_device(const std::string& name, const at::Tensor& tensor, const c10::intrusive_ptr<ProcessGroup>& group) {
  const at::Device device = tensor.device();
  TORCH_CHECK_VALUE(device.is_cpu() || device.is_cuda(), name, " must be on the CPU or a GPU, but is on ", device);
  TORCH_CHECK_VALUE(!device.is_cpu() || moves_cpu_tensors(group), name, " is on the CPU, but process_group (",
                    group->getBackendName(), ") has no backend for CPU tensors");
}

namespace {

// The nodes of the group. The first time they are found, once all ranks have announced `call`.
std::shared_ptr<const FoundNodes> nodes_of(const c10::intrusive_ptr<ProcessGroup>& group, engine::Engine& engine,
                                           GroupWorkspace& workspace, const Announcement& call) {
  if (workspace.nodes() == nullptr) {
    workspace.run(engine, call, nullptr);
    workspace.set_nodes(node::find_nodes(group));
  }
  return workspace.nodes();
}

}  // namespace

void average_on_engine(const at::Tensor& x, const AllReduceCallOptions& options,
                       const c10::intrusive_ptr<ProcessGroup>& group) {
  const auto engine = engine::Engine::for_group(group);
  const auto workspace = GroupWorkspace::of(group);
  const std::lock_guard<std::mutex> lock(workspace->in_use);
  Announcement call = announcement_of(x, options);
  const auto nodes =
      options.levels == Levels::kOne ? FoundNodes::flat(group->getSize()) : nodes_of(group, *engine, *workspace, call);
  std::shared_ptr<AllReduceJob> mean;
  call.refusal = refusal_of([&] {
    node::check_levels(options.levels, *nodes);
    if (nodes->memory != nullptr) nodes->memory->check_numel(x.numel());
    mean = workspace->mean(x.numel(), options.format, nodes->memory == nullptr ? nullptr : nodes);
    mean->set_call({x.view({-1}), {}, {}});
  });
  workspace->run(*engine, call, call.refusal ? nullptr : std::move(mean));
}

void average_on_stream(const at::Tensor& x, const AllReduceCallOptions& options,
                       const c10::intrusive_ptr<ProcessGroup>& group) {
  const Announcement call = announcement_of(x, options);
  const AllReduceJobOptions job{.name = kQuantizedAllReduce,
                                .rank = group->getRank(),
                                .world_size = group->getSize(),
                                .numel = x.numel(),
                                .format = options.format};
  GroupWorkspace::of(group)->run_on_stream(
      call, [&] { announce_call(call, group, x.device()); },
      [&] {
        StreamAllReduce({group}, job, x.device()).enqueue({x, {}, {}});
      });
}

}  // namespace narrowcast::collectives
