// The mean over the ranks of a group, sent in a wire format (narrowcast/wire_formats.h): a quarter of float32's bytes,
// or less, for any number of ranks. The algorithm is described in docs/reference/operators.md, and so are the operators
// of the same names, which take the group by its registered name.
//
// x: float32, float64, bfloat16 or float16 of any shape and strides, on the CPU or a GPU, with the same number of
// elements on every rank. It is summed in float32 and rounded to the nearest number of the format, once or twice. The
// result has x's dtype and the same bits on all ranks. With one rank it is x. If an element is NaN or Inf on any rank,
// its block's mean is NaN or Inf.
//
// levels (narrowcast/levels.h): with kAuto, ranks that share a node first average in float32 in its memory, and encoded
// messages are sent between nodes only. With kOne, every rank sends messages to every other. The bits differ between
// the two. On a GPU there is one level, and kTwo is an error.
//
// All ranks call the same collectives of a group in the same order; concurrent calls of a rank's threads run one after
// another. Every call waits until all ranks have made it. A group's first call with kAuto or kTwo finds its nodes. On a
// GPU, the mean is complete in the order of the current stream. Errors:
//
// - Ranks differ in format, levels, number of elements or kind of device: all throw the same c10::ValueError before
//   data is sent. The group can still be used.
// - One rank's own arguments are wrong (and its group is not null), or two levels are asked for and impossible: all
//   throw its c10::ValueError or c10::TypeError. The group can still be used.
// - A peer or the network fails: c10::DistBackendError. A tensor that was written in place is then undefined.
//
// There are no gradients: backward through a result throws.
//
// On a GPU these checks are made by a group's first call with a number of elements and options. Later calls wait for
// nothing, and a CUDA graph may record them. They do not detect ranks that differ. Such ranks wait for each other until
// the backend's time limit. If their messages have the same size, they read each other's messages in their own format.
//
// On the CPU, the group keeps the memory for the messages of its largest call. In one level it is 2 to 3 times the
// encoded size of x; with two ranks or a small x, it is W times that size for W ranks. In two levels a rank keeps 4
// bytes of shared memory for each element of x, and memory for messages of its part of x.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <narrowcast/export.h>
#include <narrowcast/levels.h>
#include <narrowcast/wire_formats.h>

namespace NARROWCAST_EXPORT narrowcast {

// Writes the mean to x.
void quantized_all_reduce_(const at::Tensor& x, WireFormat format, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                           Levels levels = Levels::kAuto);

// Returns the mean, contiguous, and does not change x.
at::Tensor quantized_all_reduce(const at::Tensor& x, WireFormat format,
                                const c10::intrusive_ptr<c10d::ProcessGroup>& group, Levels levels = Levels::kAuto);

}  // namespace narrowcast
