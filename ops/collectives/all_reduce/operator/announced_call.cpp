#include "ops/collectives/all_reduce/operator/announced_call.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include <narrowcast/wire_format.h>
#include "ops/collectives/all_reduce/stream/stream_all_reduce.h"
#include "ops/comm/groups/group.h"
#include "ops/common/backend_errors.h"
#include "ops/common/per_group.h"

namespace narrowcast::collectives {
namespace {

using c10d::ProcessGroup;

static_assert(sizeof(CallHeader) == sizeof(PassTag));
static_assert(std::is_trivially_copyable_v<CallHeader> && std::has_unique_object_representations_v<CallHeader>);

std::string name_of_format(int64_t number) {
  const auto is_it = [number](WireFormat format) { return static_cast<int64_t>(format) == number; };
  const auto* const found = std::find_if(kWireFormats.begin(), kWireFormats.end(), is_it);
  return found == kWireFormats.end() ? "number " + std::to_string(number) : std::string(to_string(*found));
}

std::string name_of_device(int64_t number) {
  const auto type = static_cast<at::DeviceType>(number);
  return static_cast<int64_t>(type) == number && c10::isValidDeviceType(type)
             ? c10::DeviceTypeName(type, /*lower_case=*/true)
             : "device number " + std::to_string(number);
}

// Whether a rank can have sent it: a call has nothing where refusals are, and a refusal is as ranks write them.
bool is_header(const CallHeader& header) {
  std::array<uint8_t, kRefusalBytes> refusal{};
  write_refusal(read_refusal(header.refusal.data()), refusal.data());
  return header.mark == CallHeader::kMark && header.refusal == refusal;
}

}  // namespace

CallHeader header_of_call(const at::Tensor& array, WireFormat format) {
  return {.numel = array.numel(),
          .format = static_cast<int64_t>(format),
          .device_type = static_cast<int64_t>(array.device().type())};
}

CallHeader header_of_refusal(const Refusal& refusal) {
  CallHeader header;
  write_refusal(refusal, header.refusal.data());
  return header;
}

bool are_same_call(const std::vector<CallHeader>& headers) {
  const CallHeader& first = headers.front();
  return is_header(first) && !read_refusal(first.refusal.data()).has_value() &&
         std::all_of(headers.begin(), headers.end(),
                     [&](const CallHeader& header) { return std::memcmp(&header, &first, sizeof(CallHeader)) == 0; });
}

void check_same_call(const std::string& call, int64_t rank, const std::vector<CallHeader>& headers) {
  for (size_t sender = 0; sender < headers.size(); ++sender) {
    if (!is_header(headers[sender])) {
      throw_backend_error(rank, call,
                          c10::str("rank ", sender, " sent something else than what such a call begins with",
                                   ", or has a narrowcast of other formats"));
    }
  }
  for (size_t sender = 0; sender < headers.size(); ++sender) {
    const auto refusal = read_refusal(headers[sender].refusal.data());
    if (refusal.has_value()) {
      throw_refusal(*refusal, call, static_cast<int64_t>(sender));
    }
  }
  const CallHeader& first = headers.front();
  for (size_t other = 1; other < headers.size(); ++other) {
    const CallHeader& header = headers[other];
    TORCH_CHECK_VALUE(header.numel == first.numel, call, ": x has ", header.numel, " elements on rank ", other, " but ",
                      first.numel, " on rank 0");
    TORCH_CHECK_VALUE(header.format == first.format, call, ": format is ", name_of_format(header.format), " on rank ",
                      other, " but ", name_of_format(first.format), " on rank 0");
    TORCH_CHECK_VALUE(header.device_type == first.device_type, call, ": x is on ", name_of_device(header.device_type),
                      " on rank ", other, " but on ", name_of_device(first.device_type), " on rank 0");
  }
}

std::vector<CallHeader> gather_headers(const std::string& call, const CallHeader& own,
                                       const c10::intrusive_ptr<c10d::ProcessGroup>& group, at::Device device) {
  std::vector<CallHeader> headers(group->getSize(), own);
  const at::Tensor sent = at::from_blob(headers.data(), {kCallHeaderBytes}, at::kByte).clone();
  const at::Tensor received = all_gather_rows(group, call, sent, device);
  std::memcpy(headers.data(), received.const_data_ptr(), received.nbytes());
  return headers;
}

AnnouncedAllReduceJob::AnnouncedAllReduceJob(std::string name, int64_t rank, int64_t world_size)
    : name_(std::move(name)),
      rank_(rank),
      world_size_(world_size),
      headers_(at::zeros({world_size * kCallHeaderBytes}, at::kByte)) {}

at::Tensor AnnouncedAllReduceJob::header(int64_t rank) const {
  return headers_.narrow(0, rank * kCallHeaderBytes, kCallHeaderBytes);
}

void AnnouncedAllReduceJob::set_call(const CallHeader& own, std::shared_ptr<AllReduceJob> mean) {
  headers_.zero_();
  std::memcpy(header(rank_).mutable_data_ptr(), &own, sizeof(own));
  mean_ = std::move(mean);
}

std::vector<CallHeader> AnnouncedAllReduceJob::headers() const {
  std::vector<CallHeader> headers(world_size_);
  std::memcpy(headers.data(), headers_.const_data_ptr(), headers_.nbytes());
  return headers;
}

void AnnouncedAllReduceJob::start(engine::Transport& transport) {
  receives_.clear();
  for (int64_t distance = 1; distance < world_size_; ++distance) {
    const int64_t peer = transport.peer_before(distance);
    receives_.push_back(transport.post_receive({header(peer), peer, kHeaderChannel}));
  }
  for (int64_t distance = 1; distance < world_size_; ++distance) {
    transport.send({header(rank_), transport.peer_after(distance), kHeaderChannel});
  }
}

void AnnouncedAllReduceJob::advance(engine::Transport& transport) {
  for (const int64_t receive : receives_) {
    transport.wait_receive(receive);
  }
  if (mean_ != nullptr && !are_same_call(headers())) {
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
    mean_.reset();  // Before another one's messages need its memory.
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

void GroupWorkspace::run_on_stream(const CallHeader& call, const std::function<void()>& agree,
                                   const std::function<void()>& enqueue) {
  const std::lock_guard<std::mutex> lock(on_stream_);
  const std::pair kind(call.numel, call.format);
  if (!agreed_.contains(kind)) {
    agree();
    agreed_.insert(kind);
  }
  enqueue();
}

void announce_call(const CallHeader& own, const c10::intrusive_ptr<ProcessGroup>& group, at::Device device,
                   const MakeAllReduceJob& make_mean) {
  if (!moves_cpu_tensors(group)) {
    return check_same_call(kQuantizedAllReduce, group->getRank(),
                           gather_headers(kQuantizedAllReduce, own, group, device));
  }
  const auto engine = engine::Engine::for_group(group);
  const auto workspace = GroupWorkspace::of(group);
  const std::lock_guard<std::mutex> lock(workspace->in_use);
  const auto forget = c10::make_scope_exit([&] { workspace->forget_call(); });
  workspace->call()->set_call(own, make_mean ? make_mean(*workspace) : nullptr);
  engine->submit(workspace->call())->waitAndThrow();
  check_same_call(kQuantizedAllReduce, group->getRank(), workspace->call()->headers());
}

void average_on_stream(const at::Tensor& x, WireFormat format, const c10::intrusive_ptr<ProcessGroup>& group) {
  const CallHeader header = header_of_call(x, format);
  const AllReduceJobOptions options{.name = kQuantizedAllReduce,
                                    .rank = group->getRank(),
                                    .world_size = group->getSize(),
                                    .numel = x.numel(),
                                    .format = format};
  GroupWorkspace::of(group)->run_on_stream(
      header, [&] { announce_call(header, group, x.device(), {}); },
      [&] {
        StreamAllReduce({group}, options, x.device()).enqueue({x, {}, {}});
      });
}

}  // namespace narrowcast::collectives
