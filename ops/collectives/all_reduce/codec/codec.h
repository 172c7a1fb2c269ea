// What an all-reduce asks of a codec: to write this rank's message, and to average the messages of all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ops/codec/wire_rounding.h"
#include "ops/collectives/all_reduce/array/segments.h"

namespace narrowcast::collectives {

// Error feedback (ArraySegment in wire_codec.h), or null. All are float32 and, like the array,
// 1-D and contiguous.
struct Residuals {
  float* own = nullptr;   // What receivers lack of the elements that this rank sends (SentParts in two_levels.h).
  float* mean = nullptr;  // What they lack of the mean, of the elements whose mean this rank sends.
  std::vector<at::Tensor> memory = {};  // Holds both while the call is in flight, though their owner may be gone.
  // Undefined in one level; else [numel], what is added to this rank's array, but for exact elements. The exchange
  // leaves it where the mean is not finite, to be added again, and 0 elsewhere.
  at::Tensor carried = {};

  // To be called after the exchange, with its mean.
  void take_carried(const at::Tensor& mean) const {
    if (carried.defined()) {
      carried.masked_fill_(mean.isfinite(), 0);
    }
  }
};

// They tell of an array on the CPU whose segments are made while others are sent, and used while others come. Nothing
// is told of empty ones.
struct SegmentCallbacks {
  std::function<void(const Segment& segment)> before_encode = nullptr;  // Right before it is read first.
  std::function<void(const Segment& segment)> after_mean = nullptr;     // Right after its mean is written.

  void prepare(const Segment& segment) const {
    if (before_encode && segment.numel > 0) {
      before_encode(segment);
    }
  }
  void tell(const Segment& segment) const {
    if (after_mean && segment.numel > 0) {
      after_mean(segment);
    }
  }
};

// One call: what differs from step to step.
struct AllReduceCall {
  at::Tensor array;  // [numel], contiguous, float32, float64, bfloat16 or float16.
  codec::wire::Rounding rounding;
  Residuals residuals;
  SegmentCallbacks callbacks = {};
};

// What one shot makes of an array on its way: its wire format, or what else ranks may want to send each other. An
// object belongs to one exchange, and may keep what it finds between the functions of a call. On the CPU they run on
// the engine's thread, chunk after chunk; on a GPU they enqueue kernels on the current stream, and the whole array is
// one chunk.
class AllReduceCodec {
 public:
  virtual ~AllReduceCodec() = default;

  // Elements that stay together: chunks begin at multiples of it. >= 1, and may exceed the array.
  virtual int64_t grain() const = 0;

  // Size of the message of a chunk, the same on all ranks; 0 for one without elements.
  virtual int64_t message_bytes(const Segment& chunk) const = 0;

  // Writes the message of a chunk of call.array: uint8 [message_bytes(chunk)] on the array's device. All chunks that
  // have elements come, in order, before the first is averaged.
  virtual void encode(const AllReduceCall& call, const Segment& chunk, const at::Tensor& message) = 0;

  // Writes the mean over ranks to the chunk of call.array, given the messages of all ranks, in their order. Chunks come
  // in order.
  virtual void average(const AllReduceCall& call, const Segment& chunk, const std::vector<at::Tensor>& messages) = 0;
};

// Makes the codec for an array on that device. See wire_codec.h and affine_codec.h.
using AllReduceCodecFactory = std::function<std::unique_ptr<AllReduceCodec>(at::Device device)>;

}  // namespace narrowcast::collectives
