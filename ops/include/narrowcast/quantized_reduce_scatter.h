// The mean or the sum over the ranks of a group, sent in a wire format (narrowcast/wire_formats.h). Each rank gets one
// shard of it. A rank sends (W-1)/W of its encoded input, half the bytes of an all-reduce. The operator of the same
// name, which takes the group by its registered name, is described in docs/reference/operators.md.
//
// The elements of `input`, in order, are one part after the other for the shards of ranks 0 to W-1, of equal size. Each
// part is a message. The shard's rank decodes the messages of all ranks, its own among them, sums them in float32 in
// the order of ranks, divides by W for a mean, and rounds to the dtype of `shard`. Each element is rounded to the
// format once, to the nearest number. A NaN or Inf on any rank becomes NaN or Inf in its block of the shard (in
// variable formats in the whole shard). With one rank, the elements are copied and not rounded to the format.
//
// shard, input: float32, float64, bfloat16 or float16, of any shape and strides, both on the CPU or both on one GPU.
// `input` has W times the elements of `shard`. Their dtypes may differ, also between ranks. `shard` may be a part of
// `input`.
//
// All ranks call the same collectives of a group in the same order; concurrent calls of a rank's threads run one after
// another. Every call waits until all ranks have made it. On a GPU, the shard is complete in the order of the current
// stream. Errors are those of narrowcast/quantized_all_reduce.h, also if ranks differ in the reduction. After a
// c10::DistBackendError, `shard` is undefined. There are no gradients: backward through `shard` throws.
//
// On the CPU, a group keeps the memory for the messages of its largest call, and shares it with quantized_all_reduce.
// It is 2 times the encoded size of `input`.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <ostream>
#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <narrowcast/export.h>
#include <narrowcast/reduction.h>
#include <narrowcast/wire_formats.h>

namespace NARROWCAST_EXPORT narrowcast {

// "mean" or "sum". Throws c10::ValueError if `reduction` is not a valid Reduction.
std::string_view to_string(Reduction reduction);

// Prints to_string(reduction).
std::ostream& operator<<(std::ostream& stream, Reduction reduction);

// The inverse of to_string. Throws c10::ValueError for other names.
Reduction parse_reduction(std::string_view name);

// Writes this rank's shard of the mean or the sum of the ranks' inputs to `shard`.
void quantized_reduce_scatter_(const at::Tensor& shard, const at::Tensor& input, WireFormat format, Reduction reduction,
                               const c10::intrusive_ptr<c10d::ProcessGroup>& group);

}  // namespace narrowcast
