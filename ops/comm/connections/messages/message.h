// A message between this rank and a peer, as the work that c10d's send and recv return.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

namespace narrowcast::connections {

// Shared by all messages of a group's sockets.
struct Waiting {
  std::mutex mutex;                                    // Guards all messages and sockets.
  std::function<std::chrono::milliseconds()> timeout;  // Time limit of a wait that gives none.
  std::function<void(const std::string& why)> close;   // Closes all sockets. The caller holds the mutex.
  std::function<void()> on_failure = [] {
  };  // StripedMessages::Options::on_failure. The caller does not hold the mutex.
};

// The mutex guards all members. wait, isCompleted and abort take it; callers of the other functions hold it.
class Message final : public c10d::Work {
 public:
  // `name` of the operation in errors: "send" or "recv".
  Message(std::shared_ptr<Waiting> waiting, const char* name, at::Tensor bytes)
      : memory(std::move(bytes)), left(memory.numel()), unclaimed(left), waiting_(std::move(waiting)), name_(name) {}

  // Throws std::runtime_error if the message has failed, or after the time limit, which closes all sockets: as Gloo's.
  bool wait(std::chrono::milliseconds timeout) override;
  // Whether a wait would return, or throw, at once.
  bool isCompleted() override {
    const std::lock_guard<std::mutex> lock(waiting_->mutex);
    return is_complete_ || !failure_.empty();
  }
  // Ends one wait, the current or the next one, which returns false.
  void abort() override {
    const std::lock_guard<std::mutex> lock(waiting_->mutex);
    is_aborted_ = true;
    changed_.notify_all();
  }

  void complete();
  // Does nothing if the message is complete or has failed.
  void fail(const std::string& why);
  bool is_complete() const { return is_complete_; }

  // For a message that came before its receive: gives its bytes to the receive, and completes both.
  void hand_over();

  at::Tensor memory;                         // Undefined once the message has ended and its bytes are in place.
  int64_t left;                              // Bytes that are not written or read yet.
  int64_t unclaimed;                         // Bytes to read of which no frame has begun yet.
  bool is_early = false;                     // It came before its receive was posted.
  c10::intrusive_ptr<Message> receive = {};  // The receive of an early message, once it is posted.

 private:
  void copy_early(std::unique_lock<std::mutex>& lock);

  const std::shared_ptr<Waiting> waiting_;
  const char* const name_;
  std::condition_variable changed_;
  bool is_complete_ = false;
  at::Tensor early_bytes_;  // If a receive is complete: bytes that wait() copies to `memory`.
  bool is_copying_ = false;
  bool is_aborted_ = false;
  std::string failure_;
};

using MessagePtr = c10::intrusive_ptr<Message>;

}  // namespace narrowcast::connections
