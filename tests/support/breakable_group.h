// A backend whose collectives wait until they are aborted, as NCCL's do when a peer is gone.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "tests/support/patience.h"

namespace narrowcast::testing {

// Ends a rank of run_ranks as if its process had died.
struct Death : std::exception {};

class BreakableBackend final : public c10d::Backend {
 public:
  BreakableBackend(int rank, int size) : Backend(rank, size) {}

  void abort() override {
    before_abort();
    const std::lock_guard<std::mutex> lock(mutex_);
    ++aborts_;
    changed_.notify_all();
  }
  void shutdown() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++shutdowns_;
  }
  c10d::ErrorType getError() override { return error; }

  // Waits as a host waits for the stream of such a collective: returns once the collective is aborted. False if that
  // took too long.
  bool wait_for_abort() {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return aborts_ > 0; });
  }

  int aborts() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return aborts_;
  }
  int shutdowns() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return shutdowns_;
  }

  std::function<void()> before_abort = [] {};
  c10d::ErrorType error = c10d::ErrorType::SUCCESS;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int aborts_ = 0;
  int shutdowns_ = 0;
};

using BreakablePtr = c10::intrusive_ptr<BreakableBackend>;

// Adds the backend to `group`, for tensors on GPUs.
inline BreakablePtr add_breakable(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  auto backend = c10::make_intrusive<BreakableBackend>(group->getRank(), group->getSize());
  group->setBackend(c10::DeviceType::CUDA, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  return backend;
}

// A group with this backend only, and the backend.
inline std::pair<c10::intrusive_ptr<c10d::ProcessGroup>, BreakablePtr> breakable_group() {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(), 0, 2);
  auto backend = add_breakable(group);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  return {std::move(group), std::move(backend)};
}

}  // namespace narrowcast::testing
