#include "ops/comm/engine/transport.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <random>
#include <utility>

#include "ops/common/backend_errors.h"
#include "ops/common/backend_timeout.h"
#include "ops/common/error_message.h"

namespace narrowcast::engine {
namespace {

using c10d::Work;

// Engines use kExchanges * kChannels tags from here on. Users of the same group must use smaller ones. Collectives have
// a separate tag space.
constexpr int64_t kFirstTag = 0x4E000000;
// Exchanges whose numbers differ by kExchanges share tags. That is safe: messages of one tag between two ranks keep
// their order, and an engine has far fewer exchanges in flight.
constexpr int64_t kExchanges = 8192;

// Longest wait without a check, because a wake just before a wait is missed. The end of a peer is noticed within the
// same time.
constexpr std::chrono::milliseconds kWaitSlice{5};

// Contents of the end of a receive's memory until a message replaces it.
using Tail = std::array<uint32_t, Transport::kLeastBytes / sizeof(uint32_t)>;

const Tail& tail_without_message() {
  static const Tail tail = [] {
    std::random_device random;
    Tail numbers{};
    std::generate(numbers.begin(), numbers.end(), [&] { return random(); });
    return numbers;
  }();
  return tail;
}

// Returns null if the message is too short for a check.
uint8_t* tail_of(const at::Tensor& bytes) {
  const int64_t begin = bytes.numel() - static_cast<int64_t>(sizeof(Tail));
  return begin < 0 ? nullptr : bytes.mutable_data_ptr<uint8_t>() + begin;
}

}  // namespace

Transport::Transport(TransportOptions options) : options_(std::move(options)) {}

int64_t Transport::post_receive(const Message& message) {
  check(message);
  if (uint8_t* const tail = tail_of(message.bytes)) std::memcpy(tail, &tail_without_message(), sizeof(Tail));
  add(receives_, {nullptr, message.peer, message.bytes}, [&]() -> c10::intrusive_ptr<Work> {
    std::vector<at::Tensor> tensors{message.bytes};
    return message.bytes.numel() == 0
               ? nullptr
               : options_.backend->recv(tensors, static_cast<int>(message.peer), tag(message.channel));
  });
  return static_cast<int64_t>(receives_.size()) - 1;
}

void Transport::wait_receive(int64_t receive) {
  Pending& pending = receives_.at(receive);
  const bool is_new = pending.work != nullptr;
  wait(pending, "receiving from");
  if (is_new) check_whole(pending);
}

void Transport::check_whole(const Pending& receive) const {
  const uint8_t* const tail = tail_of(receive.received);
  TORCH_CHECK_WITH(DistBackendError, tail == nullptr || std::memcmp(tail, &tail_without_message(), sizeof(Tail)) != 0,
                   "rank ", rank(), ": ", options_.exchange, ": rank ", receive.peer, " sent fewer than the expected ",
                   receive.received.numel(), " bytes");
}

void Transport::send(const Message& message) {
  check(message);
  if (message.bytes.numel() == 0) return;
  add(sends_, {nullptr, message.peer, {}}, [&] {
    std::vector<at::Tensor> tensors{message.bytes};
    return options_.backend->send(tensors, static_cast<int>(message.peer), tag(message.channel));
  });
}

void Transport::wait_sends() {
  for (Pending& pending : sends_) wait(pending, "sending to");
}

void Transport::wait_for(Awaited& awaited, int64_t peer) {
  const std::chrono::milliseconds timeout = timeout_of(*options_.backend);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  set_awaiting(&awaited);
  options_.before_waiting();
  while (!awaited.is_there()) {
    std::string reason = awaited.why_lost();
    if (reason.empty() && std::chrono::steady_clock::now() >= deadline) {
      reason = c10::str("Timed out waiting ", timeout.count(), "ms");
    }
    if (!reason.empty() && !awaited.is_there()) {
      set_awaiting(nullptr);
      throw_backend_error(rank(), c10::str(options_.exchange, ": waiting for rank ", peer, " on the same node"),
                          reason);
    }
    awaited.wait(kWaitSlice);
    if (was_interrupted()) options_.before_waiting();
  }
  set_awaiting(nullptr);
}

void Transport::interrupt_wait() {
  const std::lock_guard<std::mutex> lock(mutex_);
  interrupted_ = true;
  if (waiting_) waiting_->abort();  // Ends the wait, not the message.
  if (awaiting_ != nullptr) awaiting_->wake();
}

void Transport::give_up(const std::string& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (given_up_.empty()) given_up_ = why;
  if (waiting_) waiting_->abort();
  if (awaiting_ != nullptr) awaiting_->wake();
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

void Transport::throw_if_given_up() const { TORCH_CHECK_WITH(DistBackendError, given_up_.empty(), given_up_); }

void Transport::add(std::vector<Pending>& works, Pending pending,
                    const std::function<c10::intrusive_ptr<Work>()>& post) {
  const std::lock_guard<std::mutex> lock(mutex_);
  throw_if_given_up();
  try {
    pending.work = post();
    works.push_back(std::move(pending));
  } catch (const std::exception& error) {
    TORCH_CHECK_WITH(DistBackendError, false, "rank ", rank(), ": ", options_.exchange,
                     ": cannot exchange messages with rank ", pending.peer, ": ", error_message(error));
  }
}

// A work's abort ends one wait on it: the current one, or the next one if the current one has already ended. An
// interrupt after set_waiting is therefore noticed, and before_waiting sees everything that happened before it.
void Transport::wait(Pending& pending, const char* action) {
  if (!pending.work) return;
  set_waiting(pending.work);
  do {
    options_.before_waiting();
  } while (!wait_once(pending, action));
  set_waiting(nullptr);
  pending.work.reset();  // A second wait would make Gloo wait for another message.
}

// Returns false if the wait was interrupted.
bool Transport::wait_once(const Pending& pending, const char* action) {
  bool finished = false;
  try {
    finished = pending.work->wait();
  } catch (const std::exception& error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    throw_if_given_up();  // That is why the connection has broken.
    throw_backend_error(rank(), c10::str(options_.exchange, ": ", action, " rank ", pending.peer),
                        error_message(error));
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

void Transport::set_awaiting(const Awaited* awaited) {
  const std::lock_guard<std::mutex> lock(mutex_);
  awaiting_ = awaited;
  interrupted_ = false;
}

bool Transport::was_interrupted() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!given_up_.empty()) awaiting_ = nullptr;
  throw_if_given_up();
  return std::exchange(interrupted_, false);
}

}  // namespace narrowcast::engine
