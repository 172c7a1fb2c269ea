// Where hooks do their work: of buckets on the CPU on an engine's thread, of those on a GPU on a stream.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Stream.h>
#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "ops/engine/engine.h"

namespace narrowcast::hooks {

// Engine::for_group, at once where the group moves tensors on the CPU only, and else when the first bucket on the CPU
// comes: a training on GPUs has none, and needs no thread for them.
class CpuEngine {
 public:
  // c10::ValueError if the group moves neither kind.
  explicit CpuEngine(c10::intrusive_ptr<c10d::ProcessGroup> group);

  // c10::ValueError if the group has no backend for CPU tensors.
  engine::Engine& get();

 private:
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::shared_ptr<engine::Engine> engine_;
};

// A stream of a hook's own, beside the backward pass and before it where both have something to do: the network waits
// for codecs. The host waits for nothing. Work is enqueued bucket after bucket,
// so that all ranks enqueue the same collectives in the same order, and what one bucket leaves in a buffer is done with
// before the next one is put there.
class HookStream {
 public:
  // Calls body(), which enqueues kernels and collectives on the current stream and returns a tensor, with the current
  // stream set to this one; it begins when all that was enqueued on the caller's stream for `bucket` is done. Returns a
  // future of the tensor, completed at once: who waits for it makes a stream wait, not the host.
  //
  // Also for buckets on the CPU, where there are no streams and body() does its work itself.
  c10::intrusive_ptr<c10::ivalue::Future> run(const at::Tensor& bucket, const std::function<at::Tensor()>& body);

 private:
  std::optional<c10::Stream> stream_;  // It is on the device of the buckets so far.
};

}  // namespace narrowcast::hooks
