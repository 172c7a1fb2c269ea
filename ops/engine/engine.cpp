#include "ops/engine/engine.h"

#include <c10/util/Exception.h>
#include <c10/util/thread_name.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "ops/engine/worker.h"

namespace narrowcast::engine {
namespace {

c10::intrusive_ptr<c10d::Backend> cpu_backend(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  TORCH_CHECK_VALUE(group, "process_group must be a process group, but is null");
  const auto devices = group->getDeviceTypes();
  TORCH_CHECK_VALUE(std::any_of(devices.begin(), devices.end(), [](c10::Device device) { return device.is_cpu(); }),
                    "process_group must have a backend for CPU tensors, but this one (", group->getBackendName(),
                    ") has none");
  return group->getBackend(c10::DeviceType::CPU);
}

}  // namespace

std::shared_ptr<Engine> Engine::for_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  // Exchanges of a group are counted on from engine to engine, as it may depend on the time which ranks make a new one.
  // The weak reference keeps the group's address from being another one's. (One to the backend would keep the backend's
  // threads until it goes.)
  struct Count {
    c10::weak_intrusive_ptr<c10d::ProcessGroup> group;
    std::shared_ptr<std::atomic<int64_t>> exchanges = std::make_shared<std::atomic<int64_t>>(0);
  };
  static std::mutex mutex;
  // An engine keeps its backend alive, so that a live entry's address names that backend and no other.
  static std::unordered_map<const c10d::Backend*, std::weak_ptr<Engine>> engines;
  static std::unordered_map<const c10d::ProcessGroup*, Count> counts;
  auto backend = cpu_backend(group);
  const std::lock_guard<std::mutex> lock(mutex);
  std::erase_if(engines, [](const auto& entry) { return entry.second.expired(); });
  std::erase_if(counts, [](const auto& entry) { return entry.second.group.expired(); });
  auto& known = engines[backend.get()];
  auto engine = known.lock();
  if (!engine) {
    const Count& count =
        counts.try_emplace(group.get(), Count{c10::weak_intrusive_ptr<c10d::ProcessGroup>(group)}).first->second;
    engine = std::make_shared<Engine>(Key{}, std::move(backend), count.exchanges);
    known = engine;
  }
  return engine;
}

Engine::Engine(Key, c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<std::atomic<int64_t>> exchanges)
    : worker_(std::make_shared<Worker>(std::move(backend), std::move(exchanges))) {
  thread_ = std::thread([worker = worker_] {
    c10::setThreadName("nc_engine");
    worker->run();
  });
}

Engine::~Engine() {
  worker_->stop();
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();  // A callback dropped the last reference; the thread ends when the callback has returned.
  } else {
    thread_.join();
  }
}

c10::intrusive_ptr<c10::ivalue::Future> Engine::submit(std::shared_ptr<Job> job) {
  TORCH_CHECK_VALUE(job, "job must not be null");
  return worker_->submit(std::move(job));
}

}  // namespace narrowcast::engine
