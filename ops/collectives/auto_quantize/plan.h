// Step 1 of a collective whose tensors are sent as FP16 or BFP16 (exchange.h): a rank's plan for its arguments.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/OptionalArrayRef.h>

#include <functional>

#include "ops/collectives/auto_quantize/exchange.h"

namespace narrowcast::collectives {

// Rows (indices of dimension 0) that go to and come from each rank. Without a value, the parts are equal.
struct Splits {
  at::OptionalIntArrayRef output;
  at::OptionalIntArrayRef input;
};

// Returns the encoding of the tensors, from arguments that may be wrong: then it throws as plan_* do.
using EncodingArgument = std::function<Encoding()>;

// If this rank's arguments are wrong, takes part in step 2 to send the reason to the other ranks. All ranks then throw
// a c10::ValueError or c10::TypeError that names the rank, the argument and its value. A null group is a
// c10::ValueError on this rank.
Exchange plan_all_gather(const Group& group, const EncodingArgument& encoding, at::TensorList outputs,
                         const at::Tensor& input);
Exchange plan_all_to_all(const Group& group, const EncodingArgument& encoding, at::TensorList outputs,
                         at::TensorList inputs);
Exchange plan_all_to_all_single(const Group& group, const EncodingArgument& encoding, const at::Tensor& output,
                                const at::Tensor& input, Splits splits);

}  // namespace narrowcast::collectives
