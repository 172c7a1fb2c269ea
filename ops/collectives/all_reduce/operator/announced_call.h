// The quantised all-reduce of callers who have agreed on nothing before: every rank tells all others of its call before
// data is sent, so that all come to the same verdict. auto_quantize/agreement.cpp says why ranks agree otherwise there.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include <narrowcast/wire_formats.h>
#include "ops/collectives/all_reduce/algorithms/all_reduce_job.h"
#include "ops/comm/engine/engine.h"
#include "ops/comm/groups/arguments.h"
#include "ops/comm/groups/pass_tags.h"

namespace narrowcast::collectives {

// What a rank tells of its call, as it travels. All ranks of a job have the same byte order.
struct CallHeader {
  // Its last byte changes with the bytes of a format, so that ranks whose libraries write others refuse each other.
  static constexpr int64_t kMark = 0x6E63617374726504;

  int64_t mark = kMark;
  int64_t numel = 0;        // The array's.
  int64_t format = 0;       // A number of WireFormat.
  int64_t device_type = 0;  // A number of at::DeviceType: where the array is.
  std::array<uint8_t, kRefusalBytes> refusal{};
};

inline constexpr auto kCallHeaderBytes = static_cast<int64_t>(sizeof(CallHeader));

CallHeader header_of_call(const at::Tensor& array, WireFormat format);
CallHeader header_of_refusal(const Refusal& refusal);

// Whether all ranks make the same call. `headers`: by rank.
bool are_same_call(const std::vector<CallHeader>& headers);

// Throws unless they are, on all ranks the same: the c10::ValueError or c10::TypeError that a rank found itself, or a
// c10::ValueError naming what differs from rank 0. c10::DistBackendError if a rank sent something else than a header.
void check_same_call(const std::string& call, int64_t rank, const std::vector<CallHeader>& headers);

// All ranks' headers, by rank, through the all-gather of a group that moves no CPU tensors: on `device`, which is
// waited for. c10::DistBackendError naming rank and call if it fails.
std::vector<CallHeader> gather_headers(const std::string& call, const CallHeader& own,
                                       const c10::intrusive_ptr<c10d::ProcessGroup>& group, at::Device device);

// A call's exchange on the engine.
// start:   sends the header of this rank's call to every other rank.
// advance: waits for the headers of all others. If all are the same, every rank knows the size of every message, and
//          the mean starts. If not, no rank sends any data: the exchange ends, and the group is as good as before.
//          (Headers take a fraction of a millisecond. Encoding meanwhile, to send everything at once afterwards, costs
//          more: then no message is under way while the next one is encoded.)
// finish:  the mean's.
//
// Nothing of a former call is relied on, so that ranks cannot differ in what they remember.
class AnnouncedAllReduceJob final : public engine::Job {
 public:
  // `name`: of the exchange, in errors.
  AnnouncedAllReduceJob(std::string name, int64_t rank, int64_t world_size);

  // What the next submission does. `mean`, with its call set, is run if all ranks' headers are equal; null: headers are
  // all there is to exchange.
  void set_call(const CallHeader& own, std::shared_ptr<AllReduceJob> mean);

  // The headers of the last submission, by rank. Ranks that differ are not an error of the job, after which its engine
  // would take no other: see check_same_call.
  std::vector<CallHeader> headers() const;

  std::string name() const override { return name_; }
  void start(engine::Transport& transport) override;
  void advance(engine::Transport& transport) override;
  at::Tensor finish(engine::Transport& transport) override;

 private:
  at::Tensor header(int64_t rank) const;

  const std::string name_;
  const int64_t rank_;
  const int64_t world_size_;
  const at::Tensor headers_;  // uint8 [W * header], by rank; this rank's own is what it sends.
  std::vector<int64_t> receives_;
  std::shared_ptr<AllReduceJob> mean_;  // Null also once the ranks are found to differ.
};

// What the quantised all-reduce keeps for a process group from call to call: memory for the messages of one call,
// of the largest yet. Fresh memory costs more than the network does. Nothing here says what other ranks do, and
// nothing keeps the group alive.
class GroupWorkspace {
 public:
  // The group's own, made at its first call. A group does not tell when it is destroyed: the next call on any group
  // frees what those that are gone had. Thread-safe.
  static std::shared_ptr<GroupWorkspace> of(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

  GroupWorkspace(int64_t rank, int64_t world_size);

  // To be held during a call. One call of a group is under way at a time, in whatever threads they are made.
  std::mutex in_use;

  const std::shared_ptr<AnnouncedAllReduceJob>& call() const { return call_; }

  // The mean of arrays of `numel` elements. The last one is kept.
  const std::shared_ptr<AllReduceJob>& mean(int64_t numel, WireFormat format);

  // After a call: keeps nothing of the caller's.
  void forget_call();

  // Calls enqueue(), for an array on a device's stream, and before the first call of a number of elements and a format
  // agree(), for which the host waits; if that throws, the next such call is the first. Calls of several threads take
  // turns.
  void run_on_stream(const CallHeader& call, const std::function<void()>& agree, const std::function<void()>& enqueue);

 private:
  const int64_t rank_;
  const int64_t world_size_;
  const JobMemory memory_;
  const std::shared_ptr<AnnouncedAllReduceJob> call_;
  std::shared_ptr<AllReduceJob> mean_;
  std::mutex on_stream_;
  std::set<std::pair<int64_t, int64_t>> agreed_;  // Numbers of elements and formats.
};

// As errors call it.
inline constexpr const char* kQuantizedAllReduce = "quantized_all_reduce";

// Hands `own` to all ranks, through the CPU if the group can: else on `device`, which is waited for. Throws, on all
// ranks the same, unless theirs are equal. Then averages, on the CPU, by `mean` if there is one.
using MakeAllReduceJob = std::function<std::shared_ptr<AllReduceJob>(GroupWorkspace&)>;
void announce_call(const CallHeader& own, const c10::intrusive_ptr<c10d::ProcessGroup>& group, at::Device device,
                   const MakeAllReduceJob& make_mean);

// Replaces x, [numel], contiguous, by its mean for what is enqueued on the current stream of its device afterwards. The
// ranks announce the first call of a size and format of a group; later ones wait for nothing, and a CUDA graph may
// record them. Messages have memory for the time of the call: that of the graph where there is one, else what the
// allocator has at hand for that stream.
void average_on_stream(const at::Tensor& x, WireFormat format, const c10::intrusive_ptr<c10d::ProcessGroup>& group);

}  // namespace narrowcast::collectives
