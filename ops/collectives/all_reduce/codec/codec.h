// Codec interface of an all-reduce: write this rank's message, and average the messages of all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ops/codec/wire_rounding.h"
#include "ops/collectives/all_reduce/array/element_range.h"

namespace narrowcast::collectives {

// Error feedback (ArraySlice in wire_codec.h). Pointers may be null. All buffers are float32 and, like the array, 1-D
// and contiguous.
struct Residuals {
  float* own = nullptr;   // Rounding error of the elements that this rank sends (SentParts in two_levels.h).
  float* mean = nullptr;  // Rounding error of the mean that this rank sends.
  std::vector<at::Tensor> memory = {};  // Keeps both alive during the call, even without their owner.
  // Undefined in one level. In two levels, [numel]: values that are added to this rank's array, except to exact
  // elements. The exchange sets it to 0 where the mean is finite. Elsewhere it keeps the values for the next step.
  at::Tensor carried = {};

  // Call this after the exchange, with its mean.
  void take_carried(const at::Tensor& mean) const {
    if (carried.defined()) {
      carried.masked_fill_(mean.isfinite(), 0);
    }
  }
};

// Callbacks for an array on the CPU: slices are produced while others are sent, and used while others arrive. Not
// called for empty slices.
struct ChunkCallbacks {
  std::function<void(const ElementRange& slice)> before_encode =
      nullptr;                                                          // Immediately before the slice is first read.
  std::function<void(const ElementRange& slice)> after_mean = nullptr;  // Immediately after its mean is written.

  void call_before_encode(const ElementRange& slice) const {
    if (before_encode && slice.numel > 0) {
      before_encode(slice);
    }
  }
  void call_after_mean(const ElementRange& slice) const {
    if (after_mean && slice.numel > 0) {
      after_mean(slice);
    }
  }
};

// One call: the values that differ from step to step.
struct AllReduceCall {
  at::Tensor array;  // [numel], contiguous, float32, float64, bfloat16 or float16.
  codec::wire::Rounding rounding;
  Residuals residuals;
  ChunkCallbacks callbacks = {};
};

// How one shot encodes and averages an array: in a wire format or in any other representation. An object belongs to one
// exchange and may keep state between the functions of a call. On the CPU they run on the engine's thread, chunk after
// chunk. On a GPU they enqueue kernels on the current stream, and the whole array is one chunk.
class AllReduceCodec {
 public:
  virtual ~AllReduceCodec() = default;

  // Number of elements that stay together: chunks begin at its multiples. >= 1; may exceed the array.
  virtual int64_t grain() const = 0;

  // Size in bytes of the message of a chunk, the same on all ranks; 0 for an empty chunk.
  virtual int64_t message_bytes(const ElementRange& chunk) const = 0;

  // Writes the message of a chunk of call.array to `message`, uint8 [message_bytes(chunk)] on the array's device. All
  // non-empty chunks are encoded, in order, before the first one is averaged.
  virtual void encode(const AllReduceCall& call, const ElementRange& chunk, const at::Tensor& message) = 0;

  // Writes the mean over ranks to the chunk of call.array. `messages`: those of all ranks, by rank. Chunks are averaged
  // in order.
  virtual void average(const AllReduceCall& call, const ElementRange& chunk,
                       const std::vector<at::Tensor>& messages) = 0;
};

// Makes the codec for an array on that device. See wire_codec.h and affine_codec.h.
using AllReduceCodecFactory = std::function<std::unique_ptr<AllReduceCodec>(at::Device device)>;

}  // namespace narrowcast::collectives
