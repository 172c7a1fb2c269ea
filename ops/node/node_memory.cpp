#include "ops/node/node_memory.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "ops/node/local_socket.h"

namespace narrowcast::node {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kAlignment = 64;

int64_t round_up(int64_t bytes, int64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }
int64_t round_down(int64_t bytes, int64_t alignment) { return bytes / alignment * alignment; }

// std::atomic's own waiting is for the threads of one process.
void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::milliseconds at_most) {
  const timespec time{at_most.count() / 1000, at_most.count() % 1000 * 1'000'000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  constexpr int kAll = 0x7FFFFFFF;
  ::syscall(SYS_futex, &word, FUTEX_WAKE, kAll, nullptr, nullptr, 0);
}

}  // namespace

// For one word of one rank.
class NodeMemory::Wait final : public engine::Awaited {
 public:
  Wait(const NodeMemory& memory, Moment moment, const Turn& turn, int64_t local_rank)
      : memory_(memory), moment_(moment), turn_(turn), local_rank_(local_rank) {}

  bool is_there() const override { return memory_.has_reached(moment_, turn_, local_rank_); }

  void wait(std::chrono::milliseconds at_most) const override {
    const uint32_t seen = word().load(std::memory_order_acquire);
    if (!is_there()) {
      futex_wait(word(), seen, at_most);
    }
  }

  void wake() const override { futex_wake_all(word()); }

  std::string why_lost() const override { return memory_.why_lost(local_rank_); }

 private:
  Word& word() const { return memory_.word(moment_, turn_, local_rank_); }

  const NodeMemory& memory_;
  const Moment moment_;
  const Turn turn_;
  const int64_t local_rank_;
};

int64_t NodeMemory::reserved_bytes() {
  return kArrays * kSlots * static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
}

NodeMemory::NodeMemory(SharedMemory memory, std::vector<int64_t> ranks, int64_t own,
                       std::vector<Descriptor> connections)
    : memory_(std::move(memory)),
      ranks_(std::move(ranks)),
      own_(own),
      connections_(std::move(connections)),
      arrays_begin_(round_up(local_size() * static_cast<int64_t>(sizeof(Words)), kPage)),
      slot_bytes_(round_down((memory_.bytes() - arrays_begin_) / (kArrays * kSlots), kPage)) {
  TORCH_CHECK_VALUE(slot_bytes_ > 0, "the node's memory of ", memory_.bytes(), " bytes is too small for ", local_size(),
                    " ranks");
}

Turn NodeMemory::take_turn(int64_t array) {
  const uint64_t turn = turns_.at(array)++;
  return {array, static_cast<int64_t>(turn % kSlots), static_cast<uint32_t>(turn / kSlots + 1)};
}

float* NodeMemory::staging_buffer(const Turn& turn, int64_t local_rank, int64_t numel) const {
  const int64_t bytes = round_up(numel * static_cast<int64_t>(sizeof(float)), kAlignment);
  TORCH_CHECK_VALUE(bytes <= slot_bytes_ / local_size(), "an array of ", numel, " elements is too large for ",
                    local_size(), " ranks of a node with ", memory_.bytes(), " bytes of memory");
  const int64_t slot = (turn.array * kSlots + turn.slot) * slot_bytes_;
  return reinterpret_cast<float*>(memory_.data() + arrays_begin_ + slot + local_rank * bytes);
}

void NodeMemory::reach(Moment moment, const Turn& turn) {
  Word& own = word(moment, turn, own_);
  own.store(turn.number, std::memory_order_release);
  futex_wake_all(own);
}

// Numbers may go round: what counts is which of two is ahead.
bool NodeMemory::has_reached(Moment moment, const Turn& turn, int64_t local_rank) const {
  const uint32_t reached = word(moment, turn, local_rank).load(std::memory_order_acquire);
  return static_cast<int32_t>(reached - turn.number) >= 0;
}

bool NodeMemory::all_have_reached(Moment moment, const Turn& turn) const {
  for (int64_t local_rank = 0; local_rank < local_size(); ++local_rank) {
    if (!has_reached(moment, turn, local_rank)) {
      return false;
    }
  }
  return true;
}

void NodeMemory::wait_until_reached(engine::Transport& transport, Moment moment, const Turn& turn,
                                    int64_t local_rank) const {
  if (!has_reached(moment, turn, local_rank)) {
    Wait wait(*this, moment, turn, local_rank);
    transport.wait_for(wait, rank_of(local_rank));
  }
}

void NodeMemory::wait_until_all_reached(engine::Transport& transport, Moment moment, const Turn& turn) const {
  for (int64_t local_rank = 0; local_rank < local_size(); ++local_rank) {
    wait_until_reached(transport, moment, turn, local_rank);
  }
}

void NodeMemory::give_up() { words_of(own_).given_up.store(1, std::memory_order_release); }

NodeMemory::Words& NodeMemory::words_of(int64_t local_rank) const {
  return reinterpret_cast<Words*>(memory_.data())[local_rank];  // Fresh memory is zeros, as they begin.
}

NodeMemory::Word& NodeMemory::word(Moment moment, const Turn& turn, int64_t local_rank) const {
  return words_of(local_rank).moments[turn.array][turn.slot][static_cast<size_t>(moment)];
}

// Whoever has given up is one for whom this rank or another one waits, or soon will. A rank that has gone may have done
// all that it had to.
std::string NodeMemory::why_lost(int64_t local_rank) const {
  for (int64_t other = 0; other < local_size(); ++other) {
    if (words_of(other).given_up.load(std::memory_order_acquire) != 0) {
      return c10::str("rank ", rank_of(other), " of this node gave up an exchange");
    }
  }
  return local_rank != own_ && is_closed(connections_.at(local_rank)) ? "Connection closed by peer" : "";
}

}  // namespace narrowcast::node
