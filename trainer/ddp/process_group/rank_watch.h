// Finds out which ranks are late when a collective times out.
//
// In each process a thread polls the job's store once per second for a question, on a separate connection, and answers
// with what its rank is doing. A rank whose collective timed out asks all others. A rank that is stopped, hangs as a
// whole, or is on a lost node does not answer; a rank that computes or waits elsewhere does.
//
// The threads also write heartbeats to the store, and each thread may watch another rank's heartbeats. A rank that
// computes or waits for long still has heartbeats.
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

// A rank that another one has lost.
struct LostRank {
  int64_t rank = 0;  // that reports it
  int64_t lost = 0;
};

// "rank 0: rank 1 is lost: it has sent no heartbeat for 30 s".
std::string text_of_silence(const LostRank& loss, std::chrono::milliseconds silence);

class RankWatch {
 public:
  static constexpr std::chrono::milliseconds kLeastSilence{3000};  // with heartbeats each second

  struct Options {
    int64_t rank = 0;
    int64_t world_size = 1;
    std::chrono::milliseconds look_every{1000};
    std::chrono::milliseconds patience{3000};           // for ranks that do not answer
    int64_t watched = 0;                                // the rank that is watched, if `silence` is not 0
    std::chrono::milliseconds silence{0};               // heartbeat timeout: after this long without a sign of it
    std::function<void(int64_t lost)> on_silence = {};  // is called once, on a thread of the watch
    // Whether on_silence is called on all ranks except the lost one. The rank that watches the lost rank calls it last.
    bool on_all_ranks = false;
    // Whether the store is in rank 0's process: a store that does not answer for `silence` then counts as rank 0's
    // silence.
    bool rank_0_serves = false;
  };

  // Starts the thread. `store` can be cloned and is shared by the ranks of this attempt.
  RankWatch(const c10::intrusive_ptr<c10d::Store>& store, const Options& options);
  // Ends the thread. A thread that waits for an answer of the store is left behind.
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  // Describes each other rank: "rank 1 does not answer (stopped, hung or unreachable); rank 2 is not in a collective".
  // Takes at most patience + 2 s, and throws nothing.
  std::string describe_others() const;

  // With on_all_ranks, the rank that this or another rank's watch found silent. Takes at most 0.5 s.
  std::optional<int64_t> silent_rank() const;

 private:
  struct Answering;

  c10::intrusive_ptr<c10d::Store> store_;
  Options options_;
  std::shared_ptr<Answering> answering_;
};

}  // namespace narrowcast
