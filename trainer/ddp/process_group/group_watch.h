// Notices lost ranks of a process group that other code has made, such as PyTorch's, and ends waits for them.
#pragma once

#include <c10/core/DeviceType.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include <narrowcast/export.h>
#include <narrowcast/process_group.h>
#include "ops/comm/engine/engine.h"
#include "trainer/ddp/process_group/rank_watch.h"

namespace narrowcast {

// Each rank writes a heartbeat to the group's store every second, on a thread, and watches the next rank's heartbeats.
// When a rank is silent, all others fail the group's exchanges on the engine, with the rank's number, and close their
// Gloo connections of this group. Collectives of Gloo that are in progress then fail, too, with a text that names no
// rank.
class NARROWCAST_EXPORT GroupWatch {
 public:
  struct Options {
    std::chrono::milliseconds silence{30000};  // heartbeat timeout; 0: never
    // Called once, on a separate thread, with "rank R: rank L is lost: it has sent no heartbeat for 30 s".
    std::function<void(const std::string& why)> on_loss = [](const std::string& /*why*/) {};
    std::chrono::milliseconds look_every = RankWatch::Options().look_every;
  };

  // Whether waits for tensors on `device` can be ended: `group` moves them by Gloo, and CPU tensors, too.
  static bool is_possible(const ProcessGroupPtr& group, c10::DeviceType device);

  // From now on, whatever ends the Gloo connections of `group` also ends those of `other`, a group of its ranks or some
  // of them, as long as both exist: a rank may wait in another group for a machine that is lost. Has no effect if
  // `other` does not move CPU tensors by Gloo.
  static void end_together(const ProcessGroupPtr& group, const ProcessGroupPtr& other);

  // A collective: the watch of `group`. While a watch with this `silence` exists on all ranks, they share it; else each
  // rank starts one. Null without silence, in a group of one rank, and if the group's time-out is below 3 s. A longer
  // time-out that is shorter than `silence` replaces it. c10::ValueError on all ranks if `silence` differs between
  // ranks. `silence` is 0 or at least RankWatch::kLeastSilence, and not 0 only if is_possible.
  static std::shared_ptr<GroupWatch> of_group(const ProcessGroupPtr& group, const Options& options);

  GroupWatch(const ProcessGroupPtr& group, const c10::intrusive_ptr<c10d::Store>& store, const Options& options);
  // The other ranks then no longer watch this one. Takes at most 2 s.
  ~GroupWatch() = default;
  GroupWatch(const GroupWatch&) = delete;
  GroupWatch& operator=(const GroupWatch&) = delete;

  // If a rank was lost and `error` is one of the network, throws the c10::DistBackendError that on_loss is called with:
  // other ranks may have ended because of it. Takes at most 0.5 s.
  void throw_explained(const std::exception& error) const;

 private:
  const int64_t rank_;
  const std::chrono::milliseconds silence_;
  const std::shared_ptr<engine::Engine> engine_;
  const RankWatch ranks_;
};

// Returns body(). Its errors are explained by `watch`, if there is one.
template <class Body>
decltype(auto) with_watch(const std::shared_ptr<GroupWatch>& watch, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const std::exception& error) {
    if (watch != nullptr) {
      watch->throw_explained(error);
    }
    throw;
  }
}

}  // namespace narrowcast
