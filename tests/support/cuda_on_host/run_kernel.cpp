#include "tests/support/cuda_on_host/run_kernel.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/cuda_on_host/barrier.h"
#include "tests/support/cuda_on_host/fibre.h"

namespace narrowcast::cuda_on_host {
namespace {

// A thread of the running block.
struct Thread {
  Fibre fibre;
  const Barrier* waits_at = nullptr;
  int64_t round = 0;  // The round of that barrier.
  std::vector<PendingCopy> pending_copies = {};
};

// Threads of earlier launches. Their stacks are mapped already.
std::vector<std::unique_ptr<Thread>> spare_threads;

class Block {
 public:
  explicit Block(int64_t threads) : barrier(threads) {
    for (int64_t i = 0; i < threads; ++i) {
      if (spare_threads.empty()) spare_threads.push_back(std::make_unique<Thread>());
      threads_.push_back(std::move(spare_threads.back()));
      spare_threads.pop_back();
      if (i % kWarpSize == 0) warps.emplace_back(kWarpSize);
    }
  }

  // A thread that has not ended leaves objects on its stack, and sanitizers would not allow others there.
  ~Block() {
    for (auto& thread : threads_) {
      if (thread->fibre.ended()) spare_threads.push_back(std::move(thread));
    }
  }

  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void run(Turns turns, const std::function<void()>& kernel) {
    for (auto& thread : threads_) {
      thread->waits_at = nullptr;
      thread->pending_copies.clear();
      thread->fibre.start([&kernel] { kernel(); });  // Small: needs no memory of its own.
    }
    while (take_turns(turns)) {
    }
  }

  void wait_for(const Barrier& place, int64_t round) {
    Thread& thread = *threads_[static_cast<size_t>(running)];
    thread.waits_at = &place;
    thread.round = round;
    Fibre::yield();
    thread.waits_at = nullptr;
  }

  std::vector<PendingCopy>& pending_copies() { return threads_[static_cast<size_t>(running)]->pending_copies; }

  Barrier barrier;
  std::vector<Barrier> warps;
  int64_t running = 0;

 private:
  // Lets every thread run that can run. False when all have ended.
  bool take_turns(Turns turns) {
    bool waiting = false;
    bool moved = false;
    const auto count = static_cast<int64_t>(threads_.size());
    for (int64_t turn = 0; turn < count; ++turn) {
      running = turns == Turns::kForward ? turn : count - 1 - turn;
      Thread& thread = *threads_[static_cast<size_t>(running)];
      if (thread.fibre.ended()) continue;
      waiting = true;
      if (thread.waits_at != nullptr && !thread.waits_at->over(thread.round)) continue;
      moved = true;
      threadIdx.x = static_cast<unsigned>(running);
      thread.fibre.resume();
      if (thread.fibre.ended() && !thread.pending_copies.empty()) {
        throw std::logic_error("thread " + std::to_string(running) + " ends without waiting for a copy");
      }
    }
    if (waiting && !moved) refuse_to_wait();
    return waiting;
  }

  [[noreturn]] void refuse_to_wait() const {
    int64_t i = 0;
    while (threads_[static_cast<size_t>(i)]->waits_at == nullptr) ++i;
    throw std::logic_error("thread " + std::to_string(i) + " of block " + std::to_string(blockIdx.x) + " waits at " +
                           threads_[static_cast<size_t>(i)]->waits_at->name() +
                           ", where not all that it waits for will come");
  }

  std::vector<std::unique_ptr<Thread>> threads_;
};

Block* block = nullptr;

}  // namespace

Barrier& warp_barrier() { return block->warps[static_cast<size_t>(block->running / kWarpSize)]; }
Barrier& block_barrier() { return block->barrier; }
int64_t lane() { return block->running % kWarpSize; }
int64_t thread_in_block() { return block->running; }
std::vector<PendingCopy>& pending_copies() { return block->pending_copies(); }
void wait_for(const Barrier& barrier, int64_t round) { block->wait_for(barrier, round); }

const LaneValues& Barrier::arrive_and_wait(const char* name, int64_t member, uint64_t value) {
  if (present_ == 0) {
    name_ = name;
  } else if (name_ != name) {
    throw std::logic_error("threads that must meet are at " + name_ + " and at " + name);
  }
  const int64_t round = rounds_;
  LaneValues& values = values_[static_cast<size_t>(round % 2)];
  if (member < kWarpSize) values[static_cast<size_t>(member)] = value;
  if (++present_ < members_) {
    wait_for(*this, round);
  } else {
    present_ = 0;
    ++rounds_;
  }
  return values;
}

void run_kernel(const Launch& launch, const std::function<void()>& kernel) {
  if (launch.threads < 1 || launch.threads > 1024 || launch.threads % kWarpSize != 0 || launch.blocks < 1 ||
      launch.blocks > INT32_MAX || launch.rows < 1 || launch.rows > UINT16_MAX) {
    throw std::invalid_argument("a launch of " + std::to_string(launch.rows) + " times " +
                                std::to_string(launch.blocks) + " blocks of " + std::to_string(launch.threads) +
                                " threads");
  }
  Block this_block(launch.threads);
  gridDim.x = static_cast<unsigned>(launch.blocks);
  gridDim.y = static_cast<unsigned>(launch.rows);
  blockDim.x = static_cast<unsigned>(launch.threads);
  const int64_t blocks = launch.blocks * launch.rows;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t number = launch.turns == Turns::kForward ? i : blocks - 1 - i;
    blockIdx.x = static_cast<unsigned>(number % launch.blocks);
    blockIdx.y = static_cast<unsigned>(number / launch.blocks);
    block = &this_block;
    this_block.run(launch.turns, kernel);
    block = nullptr;
  }
}

}  // namespace narrowcast::cuda_on_host
