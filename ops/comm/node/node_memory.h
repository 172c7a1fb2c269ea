// Memory that the ranks of one node share: arrays to be summed, and words that show each rank's progress.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/comm/engine/engine.h"
#include "ops/comm/engine/transport.h"
#include "ops/comm/node/shared_memory.h"
#include "ops/common/file_descriptor.h"

namespace narrowcast::node {

// Progress of a rank in an exchange.
enum class Phase {
  kStaged,     // Its array is in the node's memory.
  kPublished,  // The mean of its segment is in the node's memory.
  kFinished,   // It has read all data that it needs from the others.
};

// The use of the memory by one exchange. The words of one slot show the progress of its ranks. There are as many slots
// as exchanges in flight (engine::kMaxInFlight). They are used in turn, because all ranks run the exchanges in the same
// order.
struct SlotUse {
  int64_t array = 0;    // Index of the array of a job.
  int64_t slot = 0;     // Index of the array's slot.
  uint32_t number = 0;  // Number of uses of the slot, including this one.
  bool operator==(const SlotUse&) const = default;
};

// Last step of a phase. A phase that is reached in steps counts them from 1.
inline constexpr uint32_t kAllSteps = 1U << 16;

// One rank's view of the memory. It is used on the engine's thread only.
class NodeMemory {
 public:
  static constexpr int64_t kArrays = 2;  // Of one job: quantised data; exact data or announcements.
  static constexpr int64_t kSlots = engine::kMaxInFlight;

  // Bytes to reserve: the machine's memory size for each slot's buffers. Unused memory costs nothing.
  static int64_t reserved_bytes();

  // Reserves reserved_bytes() for `local_size` ranks. If the system refuses that, for instance by RLIMIT_AS, the size
  // is halved repeatedly until the system would grant twice the size; the other half is left to the process. The size
  // is at least kLeastBuffer for each staging buffer. Throws std::system_error if that is refused too.
  static SharedMemory reserve(int64_t local_size);
  static constexpr int64_t kLeastBuffer = int64_t{64} << 20;

  // `ranks`: ranks of the group that share the memory, in ascending order. `own`: this rank's index among them.
  // `connections`: one to each rank except this one; a closed connection means that the rank is gone.
  NodeMemory(SharedMemory memory, std::vector<int64_t> ranks, int64_t own, std::vector<FileDescriptor> connections);

  int64_t local_rank() const { return own_; }
  int64_t local_size() const { return static_cast<int64_t>(ranks_.size()); }
  // The rank in the group.
  int64_t rank_of(int64_t local_rank) const { return ranks_.at(local_rank); }
  // To another rank of the node. Nothing is under way on it between exchanges.
  const FileDescriptor& connection_to(int64_t local_rank) const { return connections_.at(local_rank); }

  // Throws c10::ValueError, on all ranks of the node, if the reserved memory is too small for arrays of `numel` floats.
  void check_numel(int64_t numel) const;

  // Takes the slot for the next exchange of array 0 or 1 of a job. All ranks of the node take the same slots in the
  // same order. Throws c10::DistBackendError after a rank of the node has given up an exchange, because the group is
  // then unusable.
  SlotUse take_slot(int64_t array);

  // Returns the slot that was taken last, in which this rank has not called reach(), as if it had not been taken. All
  // ranks do so before their next use of the array, or none.
  void return_slot(const SlotUse& use);

  // Chooses this rank's staging buffer for that use: the first one that no rank still reads. The other ranks must have
  // finished the previous use of the slot. If exchanges of an array do not overlap, they all use the same buffer, which
  // may still be in a cache. `numel` is the size of the array for the buffer. Now and then, memory that arrays have not
  // used for long is returned to the system.
  void choose_buffer(const SlotUse& use, int64_t numel);

  // Returns the buffer that local rank `local_rank` has chosen for its array of `numel` floats, aligned to a page.
  // Throws like check_numel.
  float* staging_buffer(const SlotUse& use, int64_t local_rank, int64_t numel) const;

  // Announces a step, 1 <= step <= kAllSteps, to the other ranks. A rank that sees the step also sees everything
  // written before it. kFinished ends the use of the slot. It also completes all phases that the rank has skipped, such
  // as kPublished on a rank without a segment.
  void reach(Phase phase, const SlotUse& use, uint32_t step = kAllSteps);

  // Returns whether that rank has reached the step.
  bool has_reached(Phase phase, const SlotUse& use, int64_t local_rank, uint32_t step = kAllSteps) const;
  bool all_have_reached(Phase phase, const SlotUse& use) const;

  // One rank's step.
  struct Step {
    Phase phase = Phase::kStaged;
    SlotUse use;
    int64_t local_rank = 0;
    uint32_t step = kAllSteps;
  };

  // Blocks until the step is reached. Fails like Transport::wait_for.
  void wait_until_reached(engine::Transport& transport, const Step& step) const;
  void wait_until_all_reached(engine::Transport& transport, Phase phase, const SlotUse& use) const;

  // The previous use of the slot.
  static SlotUse before(const SlotUse& use) { return {use.array, use.slot, use.number - 1}; }

  // Announces that this rank's exchange has failed, so that waiting ranks fail too.
  void give_up();

 private:
  using Word = std::atomic<uint32_t>;
  static_assert(Word::is_always_lock_free && sizeof(Word) == sizeof(uint32_t), "processes share them, futexes wait");
  // The words of one rank. The word of a phase counts the steps of all uses of its slot; a completed use counts
  // kAllSteps.
  struct alignas(64) Words {
    std::array<std::array<std::array<Word, 3>, kSlots>, kArrays> phases;
    std::array<std::array<Word, kSlots>, kArrays> buffers;  // Buffer index of the last use of the slot.
    Word given_up;
  };
  // State of one of this rank's staging buffers.
  struct Buffer {
    SlotUse user = {};   // Its last use; number 0 if that is known to be over.
    int64_t used = 0;    // Bytes that may have been written.
    int64_t recent = 0;  // Largest size of a use since the last trim, in bytes.
  };
  class Wait;
  void complete_skipped_phases(const SlotUse& use);
  void trim(int64_t array);
  Words& words_of(int64_t local_rank) const;
  Word& word(Phase phase, const SlotUse& use, int64_t local_rank) const;
  std::string who_gave_up() const;
  std::string why_lost(int64_t local_rank) const;

  const SharedMemory memory_;
  const std::vector<int64_t> ranks_;
  const int64_t own_;
  const std::vector<FileDescriptor> connections_;
  const int64_t arrays_begin_;  // Offset in the memory, in bytes.
  const int64_t buffer_bytes_;  // Size of each staging buffer, a multiple of a page.
  std::array<uint64_t, kArrays> uses_{};
  std::array<std::array<Buffer, kSlots>, kArrays> buffers_{};
};

// Gives up a node's memory if this rank's exchange ends early, because ranks of the node may wait for it. An exchange
// that fails calls give_up. One that is destroyed in progress, for instance after another exchange has failed, needs no
// call.
class FailureGuard {
 public:
  // `memory` is null if the exchange uses no node's memory.
  explicit FailureGuard(std::shared_ptr<NodeMemory> memory) : memory_(std::move(memory)) {}
  ~FailureGuard() { give_up(); }
  FailureGuard(const FailureGuard&) = delete;
  FailureGuard& operator=(const FailureGuard&) = delete;

  void begin() { in_progress_ = true; }
  void end() { in_progress_ = false; }

  // Does nothing unless the exchange is in progress.
  void give_up() {
    if (std::exchange(in_progress_, false) && memory_ != nullptr) memory_->give_up();
  }

 private:
  const std::shared_ptr<NodeMemory> memory_;
  bool in_progress_ = false;
};

}  // namespace narrowcast::node
