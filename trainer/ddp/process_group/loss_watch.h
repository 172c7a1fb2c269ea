// Detects at once that a rank is lost, for groups whose collectives do not notice it: NCCL's.
//
// The ranks form a ring. Each waits for one message of the next rank, over the group's connections for CPU tensors:
//   - an end message, from a rank whose work has ended well;
//   - the number of a lost rank, which it forwards to the previous rank until the message has gone round;
//   - the end of the connection, which a process that dies closes: then the next rank itself is lost.
// A rank that is stopped, or whose machine is gone, closes nothing. RankWatch notices its silence and calls on_silence
// here. A rank that fails by an error sends no end message, and is lost to the others.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace narrowcast {

class LossWatch {
 public:
  // Called once, on any thread, with the lost rank and how the loss was noticed. Throws nothing.
  using OnLoss = std::function<void(int64_t lost, const std::string& how)>;

  // All ranks of `backend`, at least two, create one each. The backend moves CPU tensors. Throws the backend's error if
  // the next rank is gone already.
  LossWatch(c10::intrusive_ptr<c10d::Backend> backend, OnLoss on_loss);
  // Sends the end message, unless an exception passes or a rank is lost. Waits at most a second for another rank. The
  // next rank may send its own later, so the connections must not be used for anything else afterwards.
  ~LossWatch();
  LossWatch(const LossWatch&) = delete;
  LossWatch& operator=(const LossWatch&) = delete;

  // The rank that this one watches.
  int64_t next() const;

  // Returns a function to be called when `next` has sent no heartbeat for `silence`. It may be called at any time, even
  // after this object is destroyed.
  std::function<void()> on_silence(std::chrono::milliseconds silence) const;

  // Returns when a rank is lost and OnLoss has returned, or after `limit`.
  void wait_for_loss(std::chrono::milliseconds limit) const;

 private:
  struct State;

  std::shared_ptr<State> state_;
};

}  // namespace narrowcast
