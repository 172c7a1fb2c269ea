// Work on buckets that lie on a GPU: in order, beside the backward pass, and without the host waiting.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Stream.h>
#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <optional>

namespace narrowcast::hooks {

// A stream of a hook's own. Work is enqueued bucket after bucket, so that all ranks enqueue the same collectives in the
// same order, and what one bucket leaves in a buffer is done with before the next one is put there.
class HookStream {
 public:
  // Calls body(), which enqueues kernels and collectives on the current stream and returns a tensor, with the current
  // stream set to this one; it begins when all that was enqueued on the caller's stream for `bucket` is done. Returns a
  // future of the tensor, completed at once: who waits for it makes a stream wait, not the host.
  //
  // Also for buckets on the CPU, where there are no streams and body() does its work itself.
  c10::intrusive_ptr<c10::ivalue::Future> run(const at::Tensor& bucket, const std::function<at::Tensor()>& body);

 private:
  std::optional<c10::Stream> stream_;  // Of the device of the buckets so far.
};

}  // namespace narrowcast::hooks
