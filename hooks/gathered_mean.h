// The exchange behind the quantised reference hooks, on a stream.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

namespace narrowcast::hooks {

// How a quantised hook turns a bucket into tensors that travel, and those of one rank back.
struct TensorCodec {
  // The bucket is 1-D of one of the four floating types. The tensors are contiguous, with sizes that depend on the
  // bucket's size alone.
  std::function<std::vector<at::Tensor>(const at::Tensor& bucket)> encode;

  // float32 [numel]
  std::function<at::Tensor(const std::vector<at::Tensor>& tensors, int64_t numel)> decode;
};

// Replaces `bucket` by (((+0 + what rank 0 sent) + what rank 1 sent) + ...) / W, computed by the operators that
// PyTorch's hooks use and so with the bits that they have on the bucket's device, rounded once to the bucket's dtype.
// Enqueues kernels and collectives on the current stream. Throws c10::DistBackendError naming rank and `hook` if the
// backend says at once that a collective failed. Returns the bytes that this rank sends, to all peers together.
int64_t enqueue_gathered_mean(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const std::string& hook,
                              const TensorCodec& codec, const at::Tensor& bucket);

}  // namespace narrowcast::hooks
