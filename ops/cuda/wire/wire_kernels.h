// Messages in a wire format (ops/codec/wire_*.h, docs/wire_format.md) over arrays in
// device memory: the same bytes and, but for the bits of a NaN, the same floats as
// ops/cpu/wire/wire_kernels.h.
//
// Each function launches one kernel on `stream`, of the device that is current, and
// does not wait. wire_arguments.h has the arguments. std::invalid_argument for a
// number that is no WireFormat or FloatType, or for too many ranks;
// std::runtime_error if the kernel cannot be launched.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/codec/wire_format.h"
#include "ops/cuda/wire/wire_arguments.h"

namespace narrowcast::cuda {

// Writes the message of x.
void wire_encode(WireFormat format, const EncodeArguments& arguments, cudaStream_t stream);

// out[i] = element i of the message, rounded to the type.
void wire_decode(WireFormat format, const DecodeArguments& arguments, cudaStream_t stream);

// mean[i] = (((part of rank 0 + part of rank 1) + ...) / ranks, in float32 and in this order; then rounded to the type.
void wire_average(WireFormat format, const AverageArguments& arguments, cudaStream_t stream);

// Writes the message of that mean, not rounded to the type, in one pass over memory.
void wire_average_encode(WireFormat format, const AverageEncodeArguments& arguments, cudaStream_t stream);

}  // namespace narrowcast::cuda
