// What a rank does about other ranks that are late or gone, and what it says of them.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include <narrowcast/process_group.h>
#include "trainer/ddp/process_group/loss_watch.h"
#include "trainer/ddp/process_group/rank_watch.h"

namespace narrowcast {

// Watches over the ranks of a job's group while one process works in it.
class JobWatch {
 public:
  struct Options {
    // Whether the group has collectives that do not end by themselves when a rank is lost: then they are broken off,
    // and those of all groups split off it.
    bool breaks_off = false;
    std::chrono::milliseconds silence{30000};  // after so long without a sign a rank is lost; 0: never
    // Without breaks_off: is called on every rank, on a thread of its own, with "rank R: rank L is lost: REASON". It
    // should end the process, whose collectives nothing else ends. Null: silence is not noticed.
    std::function<void(const std::string& why)> on_silence = {};
    bool rank_0_serves = false;  // RankWatch::Options
    std::chrono::milliseconds look_every = RankWatch::Options().look_every;
    std::chrono::milliseconds settling{2000};  // how long an error waits for the news of a loss that explains it
  };

  // A part of what all ranks of `group`, at least two, do. The group moves CPU tensors.
  JobWatch(ProcessGroupPtr group, const Options& options);
  // Ends as LossWatch does.
  ~JobWatch();
  JobWatch(const JobWatch&) = delete;
  JobWatch& operator=(const JobWatch&) = delete;

  // Throws c10::DistBackendError if collectives were broken off: "rank R: rank L is lost: REASON", or, by a backend
  // itself, "rank R: a collective timed out" and what the others do.
  void throw_if_broken_off() const;

  // Throws what `error`, of this rank's work, means: the loss of a rank, if it is an error of the network, of NCCL or
  // of a GPU and a rank is lost; for a time-out the same with what the others do. Returns if it means what it says.
  void throw_explained(const std::exception& error) const;

 private:
  const ProcessGroupPtr group_;
  const Options options_;
  std::unique_ptr<LossWatch> losses_;  // null if nothing is to be broken off
  std::unique_ptr<RankWatch> ranks_;
};

}  // namespace narrowcast
