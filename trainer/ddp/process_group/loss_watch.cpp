#include "trainer/ddp/process_group/loss_watch.h"

#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "ops/common/error_message.h"

namespace narrowcast {
namespace {

using std::chrono::milliseconds;

constexpr int kTag = 0x4DFFFFFF;  // below the tags of engines (ops/comm/engine/transport.cpp)
constexpr milliseconds kAtLeisure = std::chrono::hours(24 * 365 * 10);  // The backend's limit is for collectives.
constexpr milliseconds kDelivery{1000};  // of a message whose receiver waits for it already

// A message: kEnded or the lost rank, then for how many milliseconds it was silent (0: it closed its connections).
constexpr int64_t kEnded = -1;

// If a collective over these connections times out, Gloo itself closes all of them. No rank is lost then.
bool is_of_own_time_out(const std::exception& error) {
  const std::string text = error_message(error);
  return text.find("Application timeout") != std::string::npos || text.find("Timed out") != std::string::npos;
}

at::Tensor message(int64_t what, int64_t silence) { return at::tensor({what, silence}, at::kLong); }

std::string how_noticed(int64_t silence) {
  return silence == 0 ? "it has closed its connections"
                      : c10::str("it has sent no heartbeat for ", silence / 1000, " s");
}

}  // namespace

struct LossWatch::State {
  const c10::intrusive_ptr<c10d::Backend> backend;
  const OnLoss on_loss;
  const int next;
  const int previous;
  std::vector<at::Tensor> received = {message(kEnded, 0)};
  c10::intrusive_ptr<c10d::Work> receive = {};
  std::thread listener = {};

  mutable std::mutex mutex = {};
  mutable std::condition_variable changed = {};
  bool ending = false;
  bool next_has_left = false;
  bool loss_is_found = false;
  bool loss_is_reported = false;  // on_loss has returned

  State(c10::intrusive_ptr<c10d::Backend> group, OnLoss call)
      : backend(std::move(group)),
        on_loss(std::move(call)),
        next((backend->getRank() + 1) % backend->getSize()),
        previous((backend->getRank() + backend->getSize() - 1) % backend->getSize()) {
    TORCH_CHECK_VALUE(backend->getSize() > 1, "a group of one rank has none to lose");
    receive = backend->recv(received, next, kTag);
  }

  bool is_ending() const {
    const std::lock_guard<std::mutex> lock(mutex);
    return ending;
  }

  // Waits until the next rank has sent its message or is gone, or until this object ends, which interrupts the wait.
  void listen() {
    try {
      while (!receive->wait(kAtLeisure)) {
        if (is_ending()) {
          return;
        }
      }
    } catch (const std::exception& error) {
      if (!is_of_own_time_out(error)) {
        find_loss(next, 0);
      }
      return;
    }
    const int64_t what = received[0][0].item<int64_t>();
    if (what == kEnded) {
      const std::lock_guard<std::mutex> lock(mutex);
      next_has_left = true;
    } else {
      find_loss(what, received[0][1].item<int64_t>());
    }
  }

  void find_loss(int64_t lost, int64_t silence) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      if (ending || next_has_left || loss_is_found) {
        return;
      }
      loss_is_found = true;
    }
    std::vector<at::Tensor> report = {message(lost, silence)};
    const c10::intrusive_ptr<c10d::Work> sent = lost == previous ? nullptr : send(report);
    on_loss(lost, how_noticed(silence));
    {
      const std::lock_guard<std::mutex> lock(mutex);
      loss_is_reported = true;
      changed.notify_all();
    }
    deliver(sent);
  }

  // Sends to the previous rank. Returns null if it cannot be reached.
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors) const {
    try {
      return backend->send(tensors, previous, kTag);
    } catch (const std::exception&) {
      return nullptr;
    }
  }

  static void deliver(const c10::intrusive_ptr<c10d::Work>& sent) {
    try {
      if (sent != nullptr) {
        sent->wait(kDelivery);
      }
    } catch (const std::exception&) {
      // The receiver is gone as well, or has been stopped.
    }
  }

  void send_end() const {
    std::vector<at::Tensor> end = {message(kEnded, 0)};
    deliver(send(end));
  }

  // Returns whether this rank must send an end message.
  bool end() {
    const std::lock_guard<std::mutex> lock(mutex);
    ending = true;
    return !loss_is_found;
  }
};

LossWatch::LossWatch(c10::intrusive_ptr<c10d::Backend> backend, OnLoss on_loss)
    : state_(std::make_shared<State>(std::move(backend), std::move(on_loss))) {
  state_->listener = std::thread([state = state_.get()] { state->listen(); });
}

LossWatch::~LossWatch() {
  const bool is_good = state_->end();
  if (is_good && std::uncaught_exceptions() == 0) {
    state_->send_end();
  }
  state_->receive->abort();  // Ends the wait that is in progress, or the next one.
  state_->listener.join();
}

int64_t LossWatch::next() const { return state_->next; }

std::function<void()> LossWatch::on_silence(milliseconds silence) const {
  return [weak = std::weak_ptr<State>(state_), silence] {
    if (const std::shared_ptr<State> state = weak.lock()) {
      state->find_loss(state->next, silence.count());
    }
  };
}

void LossWatch::wait_for_loss(milliseconds limit) const {
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->changed.wait_for(lock, limit, [&] { return state_->loss_is_reported; });
}

}  // namespace narrowcast
