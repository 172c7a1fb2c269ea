// Finds out at once that a rank is gone, for groups whose own collectives do not: NCCL's.
//
// The ranks form a ring. Each waits for one message of the next rank, over the group's connections for CPU tensors:
//   - a farewell, from a rank whose work has ended well;
//   - which rank is lost. It tells the rank before it the same, until the message has come round;
//   - the end of the connection, which a process that dies closes: then the next rank itself is lost.
// A rank that is stopped, or whose machine is gone, closes nothing: RankWatch notices its silence, and on_silence says
// so here. A rank that fails by an error of its own says no farewell, and is lost to the others.
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
  // Is told which rank is lost, and how that was noticed, once, on some thread. Throws nothing.
  using OnLoss = std::function<void(int64_t lost, const std::string& how)>;

  // A part of what all ranks of `backend`, at least two, which moves CPU tensors, do. Throws what the backend throws if
  // the next rank is gone already.
  LossWatch(c10::intrusive_ptr<c10d::Backend> backend, OnLoss on_loss);
  // Says farewell, unless an exception passes or a rank is lost. Waits for no other rank longer than a second, and the
  // next one may say its farewell later: the connections are for nothing else after this.
  ~LossWatch();
  LossWatch(const LossWatch&) = delete;
  LossWatch& operator=(const LossWatch&) = delete;

  // The rank that this one watches.
  int64_t next() const;

  // To be called when `next` has given no sign for `silence`. May be called at any time, also after this object's end.
  std::function<void()> on_silence(std::chrono::milliseconds silence) const;

  // Returns when a rank is lost and OnLoss has returned, or after `limit`.
  void wait_for_loss(std::chrono::milliseconds limit) const;

 private:
  struct State;

  std::shared_ptr<State> state_;
};

}  // namespace narrowcast
