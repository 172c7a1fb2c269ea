// The engine for buckets on the CPU.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "ops/engine/engine.h"

namespace narrowcast::hooks {

// Engine::for_group, at once where the group moves tensors on the CPU only, and else when the first bucket on the CPU
// comes: a training on GPUs has none, and needs no thread for them.
class CpuEngine {
 public:
  // c10::ValueError if the group moves neither kind.
  explicit CpuEngine(c10::intrusive_ptr<c10d::ProcessGroup> group) : group_(std::move(group)) {
    const auto devices = group_->getDeviceTypes();
    if (std::none_of(devices.begin(), devices.end(), [](const at::Device& device) { return device.is_cuda(); })) {
      get();
    }
  }

  // c10::ValueError if the group has no backend for CPU tensors.
  engine::Engine& get() {
    if (engine_ == nullptr) {
      engine_ = engine::Engine::for_group(group_);
    }
    return *engine_;
  }

 private:
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::shared_ptr<engine::Engine> engine_;
};

}  // namespace narrowcast::hooks
