// What the ranks of one node have in common: memory for the arrays that they sum, and words by which they tell each
// other how far they are.
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

// What a rank has done in an exchange.
enum class Phase {
  kStaged,     // Its array is in the node's memory.
  kPublished,  // The mean of its segment is in the node's memory.
  kFinished,   // It has read all that it needs of the others.
};

// One exchange's use of the memory. Its ranks tell how far they are by the words of one slot; as an engine has
// engine::kMaxInFlight exchanges in flight, and all ranks run them in the same order, as many slots are used in turn.
struct SlotUse {
  int64_t array = 0;    // Which of the arrays of a job.
  int64_t slot = 0;     // Which of that array's slots.
  uint32_t number = 0;  // How often the slot was taken, this time included.
};

// A phase that is reached in steps counts them, from 1; the last one of a phase is this.
inline constexpr uint32_t kAllSteps = 1U << 16;

// One rank's view of the memory. It is used on the engine's thread.
class NodeMemory {
 public:
  static constexpr int64_t kArrays = 2;  // A job has two: what is narrowed, and what stays exact.
  static constexpr int64_t kSlots = engine::kMaxInFlight;

  // Bytes to reserve: for each slot's buffers as much as the machine has memory. What is not used costs nothing.
  static int64_t reserved_bytes();

  // Memory of so many bytes for so many ranks. Where the system refuses as much, as by RLIMIT_AS, a smaller power of
  // two of it, of which it would have granted twice: that much is left to the process. At least kLeastBuffer for each
  // staging buffer; std::system_error if that is refused, too.
  static SharedMemory reserve(int64_t local_size);
  static constexpr int64_t kLeastBuffer = int64_t{64} << 20;

  // `ranks`: of the group, in ascending order, that share the memory. `own`: this rank's place among them.
  // `connections`: to each of them, none to itself; a rank is gone when its connection is closed.
  NodeMemory(SharedMemory memory, std::vector<int64_t> ranks, int64_t own, std::vector<FileDescriptor> connections);

  int64_t local_rank() const { return own_; }
  int64_t local_size() const { return static_cast<int64_t>(ranks_.size()); }
  // In the group.
  int64_t rank_of(int64_t local_rank) const { return ranks_.at(local_rank); }

  // The next exchange of array 0 or 1 of a job. All ranks of the node take the same slots in the same order.
  // c10::DistBackendError once a rank of the node has given up an exchange: the group is not usable any more.
  SlotUse take_slot(int64_t array);

  // Chooses the staging buffer of this rank for that use. Before it, the others must have finished what was before in
  // its slot: the first one that nobody reads any more. Who exchanges one array after the other thus always has the
  // same one, which may still be in a cache. `numel`: of the array that it will hold. Now and then the system gets back
  // what arrays have not needed for long.
  void choose_buffer(const SlotUse& use, int64_t numel);

  // Where local rank `local_rank`, which has chosen its buffer, puts its array of `numel` floats, aligned to a page.
  // c10::ValueError, on all ranks of the node alike, if the memory that is reserved is too small.
  float* staging_buffer(const SlotUse& use, int64_t local_rank, int64_t numel) const;

  // Tells the others. What was written before is there for whoever learns of it. 1 <= step <= kAllSteps.
  // kFinished ends the use of the slot: it also reaches all phases that the rank has skipped, such as kPublished on a
  // rank without a segment.
  void reach(Phase phase, const SlotUse& use, uint32_t step = kAllSteps);

  // Whether that rank has come so far.
  bool has_reached(Phase phase, const SlotUse& use, int64_t local_rank, uint32_t step = kAllSteps) const;
  bool all_have_reached(Phase phase, const SlotUse& use) const;

  // One rank's step.
  struct Step {
    Phase phase = Phase::kStaged;
    SlotUse use;
    int64_t local_rank = 0;
    uint32_t step = kAllSteps;
  };

  // Blocks until it is reached. Failures as Transport::wait_for.
  void wait_until_reached(engine::Transport& transport, const Step& step) const;
  void wait_until_all_reached(engine::Transport& transport, Phase phase, const SlotUse& use) const;

  // The exchange before in that slot: of its phases.
  static SlotUse before(const SlotUse& use) { return {use.array, use.slot, use.number - 1}; }

  // This rank's exchange has failed: the others, who wait for it, learn that it will never come.
  void give_up();

 private:
  using Word = std::atomic<uint32_t>;
  static_assert(Word::is_always_lock_free && sizeof(Word) == sizeof(uint32_t), "processes share them, futexes wait");
  // The words of one rank. The word of a phase counts the steps of all uses of its slot, kAllSteps for each that is
  // over.
  struct alignas(64) Words {
    std::array<std::array<std::array<Word, 3>, kSlots>, kArrays> phases;
    std::array<std::array<Word, kSlots>, kArrays> buffers;  // They belong to the last use of the slot.
    Word given_up;
  };
  // A staging buffer of this rank's.
  struct Buffer {
    SlotUse user = {};   // The last one, unless it is known to be over; else number 0.
    int64_t used = 0;    // Bytes that may have been written.
    int64_t recent = 0;  // The most that a use since the last trim took.
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
  const int64_t arrays_begin_;  // In the memory, in bytes.
  const int64_t buffer_bytes_;  // Each staging buffer has so many: a whole number of pages.
  std::array<uint64_t, kArrays> uses_{};
  std::array<std::array<Buffer, kSlots>, kArrays> buffers_{};
};

// Gives up a node's memory where this rank's exchange fails, or is destroyed in progress: ranks of the node may wait
// for it.
class FailureGuard {
 public:
  // Null: the exchange is in nobody's memory.
  explicit FailureGuard(std::shared_ptr<NodeMemory> memory) : memory_(std::move(memory)) {}
  ~FailureGuard() {
    if (in_progress_) give_up();
  }
  FailureGuard(const FailureGuard&) = delete;
  FailureGuard& operator=(const FailureGuard&) = delete;

  void begin() { in_progress_ = true; }
  void end() { in_progress_ = false; }

  // Calls it, a part of the exchange. What it throws is thrown on.
  template <class Part>
  void run(const Part& part) const {
    try {
      part();
    } catch (...) {
      give_up();
      throw;
    }
  }

 private:
  void give_up() const {
    if (memory_ != nullptr) memory_->give_up();
  }

  const std::shared_ptr<NodeMemory> memory_;
  bool in_progress_ = false;
};

}  // namespace narrowcast::node
