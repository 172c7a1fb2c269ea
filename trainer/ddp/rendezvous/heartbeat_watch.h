// Finds ranks that stand still while the ranks of a job meet, connect and work, with recovery in place.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "trainer/ddp/rendezvous/rendezvous.h"

namespace narrowcast::rendezvous {

// Decides by their heartbeats (heartbeats.h) which ranks stand still. Each rank looks at those after it, in a ring, up
// to the first one that lives and looks itself. So somebody looks at each rank, even if the ranks before it stand
// still, too, or do not look yet.
//
// Time is counted in looks: a process that was stopped itself does not blame others. A rank without heartbeats has not
// begun, or has ended: it does not stand still.
class SilenceOfOthers {
 public:
  // The number of heartbeats of a rank so far.
  using Signs = std::function<int64_t(int64_t rank)>;
  // Whether a rank looks at others.
  using Looks = std::function<bool(int64_t rank)>;

  struct Options {
    int64_t rank = 0;
    int64_t world_size = 1;
    std::chrono::milliseconds look_every{1000};
    std::chrono::milliseconds silence{0};  // heartbeat timeout
  };

  explicit SilenceOfOthers(const Options& options) : options_(options) {}

  // To be called every look_every: the ranks that stand still, which it names at each look.
  std::vector<int64_t> look(const Signs& signs, const Looks& looks);

 private:
  struct Seen {
    int64_t signs = -1;     // at the last look
    int64_t unchanged = 0;  // for so many looks
  };

  const Options options_;
  std::map<int64_t, Seen> seen_;
};

// During its lifetime, tells the launchers which ranks of the job stand still. They replace them, from which all ranks
// learn that they must meet anew.
class HeartbeatWatch {
 public:
  // `job` recovers in place, and its store is the launcher's.
  HeartbeatWatch(std::shared_ptr<const JobStore> job, std::chrono::milliseconds silence,
                 std::chrono::milliseconds look_every = SilenceOfOthers::Options().look_every);
  // A thread that waits for the store is left behind.
  ~HeartbeatWatch();
  HeartbeatWatch(const HeartbeatWatch&) = delete;
  HeartbeatWatch& operator=(const HeartbeatWatch&) = delete;

 private:
  struct State;

  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace narrowcast::rendezvous
