// The mean over the ranks of a group, sent in a wire format: a quarter of float32's bytes, or less, for any number of
// ranks. narrowcast/wire_formats.h has the formats. docs/operators.md tells how the mean is made, and describes the
// operators of the same names, which take the group by its registered name.
//
// x: float32, float64, bfloat16 or float16 of any shape and strides, on the CPU or a GPU; as many elements on every
// rank. It is summed in float32 and rounded to the nearest number of the format, once or twice; the result has x's
// dtype and the same bits on all ranks. With one rank it is x. A NaN or Inf anywhere is NaN or Inf in its block's mean.
//
// All ranks call the same collectives of a group in the same order; calls of several threads of a rank take turns.
// Every call waits until all ranks have made it; the mean on a GPU is complete in the order of the current stream. If
// they differ in format, number of elements or kind of device, all of them throw the same c10::ValueError before data
// is sent; if one rank's own arguments are wrong (and its group is not null), all throw its c10::ValueError or
// c10::TypeError. The group can be used afterwards. c10::DistBackendError if a peer or the network fails, which leaves
// what is written in place undefined. There are no gradients: backward through a result throws.
//
// On a GPU that holds for the first call of a number of elements and a format on a group. Later ones wait for nothing,
// and a CUDA graph may record them. Ranks that differ then are not found out: they wait for each other until the
// backend's time limit or, where their messages have as many bytes, take each other's for numbers of their own format.
//
// On the CPU, memory for the messages of the group's largest call stays with the group: 2 to 3 times the encoded size
// of x, or, with two ranks or a small x, as many times as there are ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <narrowcast/export.h>
#include <narrowcast/wire_formats.h>

namespace narrowcast {

// Writes the mean to x.
NARROWCAST_EXPORT void quantized_all_reduce_(const at::Tensor& x, WireFormat format,
                                             const c10::intrusive_ptr<c10d::ProcessGroup>& group);

// Returns the mean, contiguous, and leaves x alone.
NARROWCAST_EXPORT at::Tensor quantized_all_reduce(const at::Tensor& x, WireFormat format,
                                                  const c10::intrusive_ptr<c10d::ProcessGroup>& group);

}  // namespace narrowcast
