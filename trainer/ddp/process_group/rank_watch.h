// Finds out which ranks are late when a collective times out.
//
// In each process a thread looks into the job's store once per second for a question, on a connection of its own, and
// answers it with what its rank is doing. A rank whose collective timed out asks all others. One that was stopped,
// hangs as a whole, or is on a node that is gone does not answer; one that computes or waits elsewhere says so.
//
// The threads also tell in the store that they are there, and each may watch another rank for not doing so. A rank that
// only computes long, or waits long, is there.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace narrowcast {

class RankWatch {
 public:
  struct Options {
    int64_t rank = 0;
    int64_t world_size = 1;
    std::chrono::milliseconds look_every{1000};
    std::chrono::milliseconds patience{3000};           // with ranks that do not answer
    int64_t watched = 0;                                // the rank that is watched, if `silence` is not 0
    std::chrono::milliseconds silence{0};               // so long without a sign of it, and
    std::function<void(int64_t lost)> on_silence = {};  // is called once, on a thread of the watch
    // Whether on_silence is called on all ranks (but the lost one), on the one that watches it last.
    bool tells_all = false;
    // Whether the store is in rank 0's process: then one that does not answer for so long is rank 0's silence.
    bool rank_0_serves = false;
  };

  // Starts the thread. `store` is one that the ranks of this attempt share, and can be cloned.
  RankWatch(const c10::intrusive_ptr<c10d::Store>& store, const Options& options);
  // Ends the thread. One that a store does not answer is left behind.
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  // What every other rank does: "rank 1 does not answer (stopped, hung or unreachable); rank 2 is in no collective".
  // Takes no longer than patience + 2 s, and throws nothing.
  std::string describe_others() const;

  // With tells_all, the rank that this or another rank's watch has found silent. Takes no longer than 0.5 s.
  std::optional<int64_t> silent_rank() const;

 private:
  struct Answering;

  c10::intrusive_ptr<c10d::Store> store_;
  Options options_;
  std::shared_ptr<Answering> answering_;
};

}  // namespace narrowcast
