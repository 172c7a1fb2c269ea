#include "ops/engine/transport.h"

#include <c10/util/Exception.h>

#include <exception>
#include <utility>

#include "ops/error_message.h"

namespace narrowcast::engine {
namespace {

using c10d::Work;

// Tags from here on, kExchanges * kChannels of them, belong to engines; users of
// the same group keep to smaller ones. Collectives have a tag space of their own.
constexpr int64_t kFirstTag = 0x4E000000;
// Exchanges that far apart share tags. That is safe: messages of one tag between
// two ranks keep their order, and an engine has far fewer exchanges in flight.
constexpr int64_t kExchanges = 8192;

}  // namespace

Transport::Transport(TransportOptions options) : options_(std::move(options)) {}

int64_t Transport::post_receive(const Message& message) {
  check(message);
  add(receives_, message.peer, [&]() -> c10::intrusive_ptr<Work> {
    std::vector<at::Tensor> tensors{message.bytes};
    return message.bytes.numel() == 0
               ? nullptr
               : options_.backend->recv(tensors, static_cast<int>(message.peer), tag(message.channel));
  });
  return static_cast<int64_t>(receives_.size()) - 1;
}

void Transport::wait_receive(int64_t receive) { wait(receives_.at(receive), "receiving from"); }

void Transport::send(const Message& message) {
  check(message);
  if (message.bytes.numel() == 0) return;
  add(sends_, message.peer, [&] {
    std::vector<at::Tensor> tensors{message.bytes};
    return options_.backend->send(tensors, static_cast<int>(message.peer), tag(message.channel));
  });
}

void Transport::wait_sends() {
  for (Pending& pending : sends_) wait(pending, "sending to");
}

void Transport::interrupt_wait() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (waiting_) waiting_->abort();  // Ends the wait, not the message.
}

void Transport::give_up() {
  const std::lock_guard<std::mutex> lock(mutex_);
  given_up_ = true;
  if (waiting_) waiting_->abort();
}

void Transport::check(const Message& message) const {
  TORCH_CHECK_VALUE(message.peer >= 0 && message.peer < world_size() && message.peer != rank(), options_.exchange,
                    ": peer must be another rank of ", world_size(), ", but is ", message.peer, " on rank ", rank());
  TORCH_CHECK_VALUE(message.channel >= 0 && message.channel < kChannels, options_.exchange, ": channel must be in [0, ",
                    kChannels, "), but is ", message.channel);
}

int Transport::tag(int64_t channel) const {
  return static_cast<int>(kFirstTag + options_.sequence % kExchanges * kChannels + channel);
}

void Transport::throw_if_given_up() const {
  TORCH_CHECK_WITH(DistBackendError, !given_up_, "rank ", rank(), ": ", options_.exchange,
                   " was given up: its process group's last user here went away");
}

void Transport::add(std::vector<Pending>& works, int64_t peer, const std::function<c10::intrusive_ptr<Work>()>& post) {
  const std::lock_guard<std::mutex> lock(mutex_);
  throw_if_given_up();
  try {
    works.push_back({post(), peer});
  } catch (const std::exception& error) {
    TORCH_CHECK_WITH(DistBackendError, false, "rank ", rank(), ": ", options_.exchange,
                     ": no message can pass to or from rank ", peer, ": ", error_message(error));
  }
}

// A work's abort ends one wait on it: the one in progress or, if that has ended by itself, the next one. So whoever
// interrupts after set_waiting is noticed, and what happened before it is seen by before_waiting.
void Transport::wait(Pending& pending, const char* action) {
  if (!pending.work) return;
  set_waiting(pending.work);
  do {
    options_.before_waiting();
  } while (!wait_once(pending, action));
  set_waiting(nullptr);
  pending.work.reset();  // Gloo would wait for a second message if asked again.
}

// False if the wait was interrupted.
bool Transport::wait_once(const Pending& pending, const char* action) {
  bool finished = false;
  try {
    finished = pending.work->wait();
  } catch (const std::exception& error) {
    TORCH_CHECK_WITH(DistBackendError, false, "rank ", rank(), ": ", options_.exchange, ": ", action, " rank ",
                     pending.peer, " failed: ", error_message(error));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  throw_if_given_up();
  return finished;
}

void Transport::set_waiting(c10::intrusive_ptr<Work> work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  throw_if_given_up();
  waiting_ = std::move(work);
}

}  // namespace narrowcast::engine
