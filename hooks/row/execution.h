// Where hooks do their work: of buckets on the CPU on an engine's thread, of those on a GPU on a stream.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Stream.h>
#include <c10/util/intrusive_ptr.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "ops/comm/engine/engine.h"

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
// for codecs. The host waits for nothing. Work is enqueued bucket after bucket, so that all ranks enqueue the same
// collectives in the same order, and what one bucket leaves in a buffer is done with before the next one is put there.
class HookStream {
 public:
  // Calls body(), which enqueues kernels and collectives on the current stream and returns a tensor, with the current
  // stream set to this one; it begins when all that was enqueued on the caller's stream for `bucket` is done. Returns a
  // future of the tensor, completed at once: who waits for it makes a stream wait, not the host.
  //
  // Also for buckets on the CPU, where there are no streams and body() does its work itself.
  c10::intrusive_ptr<c10::ivalue::Future> run(const at::Tensor& bucket, const std::function<at::Tensor()>& body);

  // What is enqueued from here on begins when all is done that is enqueued on the other stream so far. `device`: of the
  // buckets, also those that are still to come.
  void wait_for(HookStream& other, at::Device device);

 private:
  c10::Stream on(at::Device device);

  std::optional<c10::Stream> stream_;  // It is on the device of the buckets so far.
};

// Several of them, so that one bucket is encoded or decoded while another one's messages are on their way. What belongs
// to a bucket from step to step is used on one of them.
class HookStreams {
 public:
  static constexpr size_t kCount = 2;

  // Which of them a bucket with that index runs on.
  static size_t place_of(size_t index) { return index % kCount; }

  // As HookStream::run, on the stream at that place.
  c10::intrusive_ptr<c10::ivalue::Future> run(size_t place, const at::Tensor& bucket,
                                              const std::function<at::Tensor()>& body) {
    return streams_.at(place).run(bucket, body);
  }

  // The same, behind all that is enqueued on any of them so far, and before all that comes: what other buckets have is
  // used, or becomes other buckets'.
  c10::intrusive_ptr<c10::ivalue::Future> run_alone(size_t place, const at::Tensor& bucket,
                                                    const std::function<at::Tensor()>& body);

 private:
  std::array<HookStream, kCount> streams_;
};

}  // namespace narrowcast::hooks
