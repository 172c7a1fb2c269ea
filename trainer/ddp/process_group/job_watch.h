// Detects lost and late ranks of a job, and explains a rank's errors by them.
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

// Watches the ranks of a job's group while one process works in it.
class JobWatch {
 public:
  struct Options {
    // Whether the group has collectives that do not end by themselves when a rank is lost. They are then aborted, and
    // so are collectives of all groups that were split off it.
    bool breaks_off = false;
    std::chrono::milliseconds silence{30000};  // heartbeat timeout, see ProcessGroupOptions; 0: never
    // Without breaks_off: called on every rank, on a separate thread, with "rank R: rank L is lost: REASON". It should
    // end the process, because nothing else ends its collectives. Null: silence is not noticed.
    std::function<void(const std::string& why)> on_silence = {};
    // Called first for a silent rank. Returns whether another process has taken its place: then the connections to the
    // lost one break, so that this rank's work fails, and nothing else is done. Null: none does.
    std::function<bool(int64_t lost)> replaces_silent = {};
    bool rank_0_serves = false;  // RankWatch::Options
    std::chrono::milliseconds look_every = RankWatch::Options().look_every;
    std::chrono::milliseconds settling{2000};  // how long an error waits for news of the lost rank that caused it
  };

  // All ranks of `group`, at least two, create one each. The group moves CPU tensors.
  JobWatch(ProcessGroupPtr group, const Options& options);
  // Ends as LossWatch's destructor does.
  ~JobWatch();
  JobWatch(const JobWatch&) = delete;
  JobWatch& operator=(const JobWatch&) = delete;

  // Throws c10::DistBackendError if collectives were aborted: "rank R: rank L is lost: REASON". If a backend itself
  // aborted them it is "rank R: a collective timed out" and a list of what the other ranks do.
  void throw_if_broken_off() const;

  // Throws the cause of `error`, an error of this rank's work. If a rank is lost and `error` is one of the network, of
  // NCCL or of a GPU, that is the loss of the rank. For a time-out it is `error` and what the other ranks do. Returns
  // if `error` needs no explanation.
  void throw_explained(const std::exception& error) const;

 private:
  const ProcessGroupPtr group_;
  const Options options_;
  std::unique_ptr<LossWatch> losses_;  // null if no collectives are to be aborted
  std::unique_ptr<RankWatch> ranks_;
};

}  // namespace narrowcast
