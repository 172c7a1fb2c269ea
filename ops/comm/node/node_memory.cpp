#include "ops/comm/node/node_memory.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "ops/comm/node/shared_memory.h"
#include "ops/common/backend_errors.h"
#include "ops/common/error_message.h"
#include "ops/common/file_descriptor.h"

namespace narrowcast::node {
namespace {

constexpr int64_t kPage = 4096;
constexpr uint32_t kUsesBetweenTrims = 64;  // Uses of slot 0 from one trim to the next.

int64_t round_up(int64_t bytes, int64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }
int64_t round_down(int64_t bytes, int64_t alignment) { return bytes / alignment * alignment; }

// Waits across processes. std::atomic::wait only works between threads of one process.
void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::milliseconds at_most) {
  const timespec time{at_most.count() / 1000, at_most.count() % 1000 * 1'000'000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  constexpr int kAll = 0x7FFFFFFF;
  ::syscall(SYS_futex, &word, FUTEX_WAKE, kAll, nullptr, nullptr, 0);
}

// Number of steps of a slot in all its uses, up to this step of this use.
uint32_t steps_until(const SlotUse& use, uint32_t step) { return (use.number - 1) * kAllSteps + step; }

}  // namespace

// The wait for one word of one rank.
class NodeMemory::Wait final : public engine::Awaited {
 public:
  Wait(const NodeMemory& memory, const Step& step) : memory_(memory), step_(step) {}

  bool is_there() const override { return memory_.has_reached(step_.phase, step_.use, step_.local_rank, step_.step); }

  void wait(std::chrono::milliseconds at_most) const override {
    const uint32_t seen = word().load(std::memory_order_acquire);
    if (!is_there()) {
      futex_wait(word(), seen, at_most);
    }
  }

  void wake() const override { futex_wake_all(word()); }

  std::string why_lost() const override { return memory_.why_lost(step_.local_rank); }

 private:
  Word& word() const { return memory_.word(step_.phase, step_.use, step_.local_rank); }

  const NodeMemory& memory_;
  const Step step_;
};

int64_t NodeMemory::reserved_bytes() {
  return kArrays * kSlots * static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
}

SharedMemory NodeMemory::reserve(int64_t local_size) {
  const auto is_granted = [](int64_t bytes) { return failure_of([=] { SharedMemory::create(bytes); }).empty(); };
  const int64_t least = kArrays * kSlots * local_size * kLeastBuffer + kPage * local_size;
  int64_t bytes = reserved_bytes();
  if (!is_granted(bytes)) {
    bytes /= 4;
    while (bytes > least && !is_granted(2 * bytes)) {
      bytes /= 2;
    }
    bytes = std::max(bytes, least);
  }
  return SharedMemory::create(bytes);
}

NodeMemory::NodeMemory(SharedMemory memory, std::vector<int64_t> ranks, int64_t own,
                       std::vector<FileDescriptor> connections)
    : memory_(std::move(memory)),
      ranks_(std::move(ranks)),
      own_(own),
      connections_(std::move(connections)),
      arrays_begin_(round_up(local_size() * static_cast<int64_t>(sizeof(Words)), kPage)),
      buffer_bytes_(round_down((memory_.bytes() - arrays_begin_) / (kArrays * kSlots * local_size()), kPage)) {
  TORCH_CHECK_VALUE(buffer_bytes_ > 0, "the node's memory of ", memory_.bytes(), " bytes is too small for ",
                    local_size(), " ranks");
}

SlotUse NodeMemory::take_slot(int64_t array) {
  if (const std::string reason = who_gave_up(); !reason.empty()) {  // The ranks may be at different uses.
    throw_backend_error(rank_of(own_), "an exchange in the node's memory", reason);
  }
  const uint64_t use = uses_.at(array)++;
  return {array, static_cast<int64_t>(use % kSlots), static_cast<uint32_t>(use / kSlots + 1)};
}

void NodeMemory::return_slot(const SlotUse& use) {
  --uses_.at(use.array);
  for (Buffer& buffer : buffers_.at(use.array)) {
    if (buffer.user == use) {
      buffer.user = {};
    }
  }
}

void NodeMemory::choose_buffer(const SlotUse& use, int64_t numel) {
  // Completed uses must be forgotten at once: use numbers wrap around, so an old one would seem to be in the future
  // after many more uses.
  std::array<Buffer, kSlots>& buffers = buffers_.at(use.array);
  for (Buffer& buffer : buffers) {
    if (all_have_reached(Phase::kFinished, buffer.user)) {
      buffer.user = {};
    }
  }
  if (use.slot == 0 && use.number % kUsesBetweenTrims == 0) {
    trim(use.array);
  }
  const auto free =
      std::find_if(buffers.begin(), buffers.end(), [](const Buffer& buffer) { return buffer.user.number == 0; });
  TORCH_INTERNAL_ASSERT(free != buffers.end(), "the node's memory has no free buffer");
  const int64_t bytes = numel * static_cast<int64_t>(sizeof(float));
  *free = {use, std::max(free->used, bytes), std::max(free->recent, bytes)};
  words_of(own_).buffers[use.array][use.slot].store(static_cast<uint32_t>(free - buffers.begin()),
                                                    std::memory_order_relaxed);
}

// Returns memory that is no longer used. Buckets are larger in the first steps, before they are rebuilt.
void NodeMemory::trim(int64_t array) {
  for (int64_t index = 0; index < kSlots; ++index) {
    Buffer& buffer = buffers_[array][index];
    if (buffer.user.number == 0) {
      const int64_t kept = round_up(buffer.recent, kPage);
      const int64_t begin = arrays_begin_ + ((array * kSlots + index) * local_size() + own_) * buffer_bytes_;
      memory_.give_back(begin + kept, round_up(buffer.used, kPage) - kept);
      buffer = {{}, buffer.recent, 0};
    }
  }
}

void NodeMemory::check_numel(int64_t numel) const {
  TORCH_CHECK_VALUE(numel <= buffer_bytes_ / static_cast<int64_t>(sizeof(float)), "an array of ", numel,
                    " elements is too large for ", local_size(), " ranks of a node with ", memory_.bytes(),
                    " bytes of shared memory; use levels: one, which needs no shared memory");
}

float* NodeMemory::staging_buffer(const SlotUse& use, int64_t local_rank, int64_t numel) const {
  check_numel(numel);
  const int64_t buffer = words_of(local_rank).buffers[use.array][use.slot].load(std::memory_order_relaxed) % kSlots;
  const int64_t index = (use.array * kSlots + buffer) * local_size() + local_rank;
  return reinterpret_cast<float*>(memory_.data() + arrays_begin_ + index * buffer_bytes_);
}

void NodeMemory::reach(Phase phase, const SlotUse& use, uint32_t step) {
  if (phase == Phase::kFinished) {
    complete_skipped_phases(use);
  }
  Word& own = word(phase, use, own_);
  own.store(steps_until(use, step), std::memory_order_release);
  futex_wake_all(own);
}

// Completes all phases, because a word that stayed behind for 32,768 uses would seem to be ahead. It wakes no rank,
// because no rank waits for a phase that another one skips.
void NodeMemory::complete_skipped_phases(const SlotUse& use) {
  for (Word& own : words_of(own_).phases[use.array][use.slot]) {
    own.store(steps_until(use, kAllSteps), std::memory_order_release);
  }
}

// Compares by difference, because numbers wrap around. Words are at most one use behind (complete_skipped_phases), and
// ranks at most kSlots uses apart.
bool NodeMemory::has_reached(Phase phase, const SlotUse& use, int64_t local_rank, uint32_t step) const {
  const uint32_t reached = word(phase, use, local_rank).load(std::memory_order_acquire);
  return static_cast<int32_t>(reached - steps_until(use, step)) >= 0;
}

bool NodeMemory::all_have_reached(Phase phase, const SlotUse& use) const {
  for (int64_t local_rank = 0; local_rank < local_size(); ++local_rank) {
    if (!has_reached(phase, use, local_rank)) {
      return false;
    }
  }
  return true;
}

void NodeMemory::wait_until_reached(engine::Transport& transport, const Step& step) const {
  if (!has_reached(step.phase, step.use, step.local_rank, step.step)) {
    Wait wait(*this, step);
    transport.wait_for(wait, rank_of(step.local_rank));
  }
}

void NodeMemory::wait_until_all_reached(engine::Transport& transport, Phase phase, const SlotUse& use) const {
  for (int64_t local_rank = 0; local_rank < local_size(); ++local_rank) {
    wait_until_reached(transport, {phase, use, local_rank});
  }
}

// A rank that fails because another one has given up must not be blamed.
void NodeMemory::give_up() {
  if (who_gave_up().empty()) {
    words_of(own_).given_up.store(1, std::memory_order_release);
  }
}

NodeMemory::Words& NodeMemory::words_of(int64_t local_rank) const {
  return reinterpret_cast<Words*>(memory_.data())[local_rank];  // New memory contains zeros, the initial values.
}

NodeMemory::Word& NodeMemory::word(Phase phase, const SlotUse& use, int64_t local_rank) const {
  return words_of(local_rank).phases[use.array][use.slot][static_cast<size_t>(phase)];
}

std::string NodeMemory::who_gave_up() const {
  for (int64_t other = 0; other < local_size(); ++other) {
    if (words_of(other).given_up.load(std::memory_order_acquire) != 0) {
      return c10::str("rank ", rank_of(other),
                      " of this node cancelled an exchange: the process group cannot be used any more");
    }
  }
  return {};
}

// A rank that has given up is checked first: this rank or another one waits for it, or soon will. A rank that is gone
// may have completed its part.
std::string NodeMemory::why_lost(int64_t local_rank) const {
  if (std::string reason = who_gave_up(); !reason.empty()) {
    return reason;
  }
  return local_rank != own_ && is_closed(connections_.at(local_rank)) ? "Connection closed by peer" : "";
}

}  // namespace narrowcast::node
