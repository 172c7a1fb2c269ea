// Where hooks run: CPU buckets on an engine's thread, GPU buckets on a stream.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Stream.h>
#include <c10/util/intrusive_ptr.h>

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <narrowcast/comm_hook.h>
#include <narrowcast/export.h>
#include <narrowcast/hook_options.h>
#include "hooks/row/bucket.h"
#include "ops/comm/engine/engine.h"

namespace narrowcast::hooks {

// Whether the gradients are on GPUs: as HookOptions::device says, else whether the group moves tensors there.
NARROWCAST_EXPORT bool averages_on_gpus(const HookOptions& options);

// Engine::for_group. If the gradients are on the CPU, the engine is made at once; otherwise when the first CPU bucket
// comes, because a training on GPUs needs no engine thread.
class CpuEngine {
 public:
  // c10::ValueError if the group moves neither CPU nor CUDA tensors.
  explicit CpuEngine(const HookOptions& options);

  // c10::ValueError if the group has no backend for CPU tensors.
  engine::Engine& get();

 private:
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::shared_ptr<engine::Engine> engine_;
};

// A separate stream of a hook, concurrent with the backward pass. It has a higher priority, because the network waits
// for the codecs. The host never waits. Work is enqueued bucket after bucket, so all ranks enqueue the same collectives
// in the same order, and each bucket is finished with a buffer before the next bucket uses it.
class HookStream {
 public:
  // Calls body() with this stream as the current stream. body() enqueues kernels and collectives and returns a tensor.
  // The work begins once everything enqueued on the caller's stream for `bucket` is done. Returns a future of the
  // tensor that is already completed: waiting for it makes a stream wait, not the host.
  //
  // On the CPU there are no streams, and body() does the work itself.
  c10::intrusive_ptr<c10::ivalue::Future> run(const at::Tensor& bucket, const std::function<at::Tensor()>& body);

  // Work enqueued on this stream from now on begins when everything enqueued on `other` so far is done. `device`: of
  // the buckets, including later ones.
  void wait_for(HookStream& other, at::Device device);

 private:
  c10::Stream on(at::Device device);

  std::optional<c10::Stream> stream_;  // On the device of the buckets so far.
};

// Several streams, so that one bucket is encoded or decoded while another bucket's messages are being sent. All work on
// one bucket's state uses one of them.
class HookStreams {
 public:
  static constexpr size_t kCount = 2;

  // The stream for a bucket with that index.
  static size_t place_of(size_t index) { return index % kCount; }

  // HookStream::run on the stream at that place.
  c10::intrusive_ptr<c10::ivalue::Future> run(size_t place, const at::Tensor& bucket,
                                              const std::function<at::Tensor()>& body) {
    return streams_.at(place).run(bucket, body);
  }

  // The same, after everything enqueued on any of the streams so far and before everything enqueued later. For work
  // that uses or moves the state of other buckets.
  c10::intrusive_ptr<c10::ivalue::Future> run_alone(size_t place, const at::Tensor& bucket,
                                                    const std::function<at::Tensor()>& body);

 private:
  std::array<HookStream, kCount> streams_;
};

// Orders the buckets of several hooks of one group that send on streams. Each hook may have separate communicators.
// If collectives of two communicators are concurrent, they may start in different orders on different ranks, and wait
// for each other without end. So when a bucket goes to another hook than the one before, its work begins once that
// one's is done. All ranks give buckets in the same order. Collectives of others, such as c10d's own, are not ordered.
class HookTurns {
 public:
  using Future = c10::intrusive_ptr<c10::ivalue::Future>;

  // The turns that all hooks of the group share.
  static std::shared_ptr<HookTurns> of(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

  // Calls run(), which passes `bucket` to `hook`. The caller's stream does not wait. On the CPU, where hooks order
  // their collectives together, it only calls run().
  Future run(const CommHook& hook, const at::Tensor& bucket, const std::function<Future()>& run);

 private:
  std::mutex mutex_;
  const void* last_ = nullptr;             // Identity of the last bucket's hook.
  std::deque<LastExchange> last_buckets_;  // Its last buckets, one for each of its streams.
  std::optional<c10::Stream> own_stream_;  // For the buckets that wait.
};

}  // namespace narrowcast::hooks
