// Runs of a tensor as messages in a wire format (docs/wire_format.md), and back.
//
// On the CPU work is split over ATen's threads at multiples of cpu::kWireGrain, which changes no bit. On a GPU it is
// enqueued on the current stream, see gpu_run_codec.h; all pointers are then to the tensor's device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "ops/codec/wire_format.h"
#include "ops/codec/wire_rounding.h"
#include "ops/collectives/wire/run.h"

namespace narrowcast::collectives {

// A run of a contiguous CPU or CUDA tensor of float32, float64, bfloat16 or float16, in the tensor's memory order, from
// a multiple of cpu::kWireGrain on. Its message has encoded_size(run.numel) bytes.
struct ArrayRun {
  at::Tensor array;
  Run run;
  // Error feedback: null, or run.numel numbers that are added to the elements when they are sent, and then replaced by
  // what the receivers lack: the sum minus what its message says, or 0 where no message is made of it. Where that is
  // not finite they stay: one NaN in a gradient is no NaN in all later ones.
  float* residual = nullptr;
};

struct WireCoding {
  WireFormat format = WireFormat::kFp32;
  codec::wire::Rounding rounding;  // Of the run's first element.
};

// Writes the message of the run.
void encode_run(const WireCoding& coding, const ArrayRun& run, uint8_t* message);

// Writes the run that the message says, rounded to the array's dtype.
void decode_run(WireFormat format, const uint8_t* message, const ArrayRun& run);

// The run's messages by rank. Null for the one rank whose part is the array's own run, or for none.
using RankMessages = std::vector<const uint8_t*>;

// Writes the mean over ranks to the run, summed in float32 in the order of ranks, and rounded to the array's dtype.
void average_runs(WireFormat format, const RankMessages& messages, const ArrayRun& run);

// Writes the message of that mean and leaves the array as it is. `mean_residual` is to the mean what run.residual is to
// the run.
void average_and_encode_runs(const WireCoding& coding, const RankMessages& messages, const ArrayRun& run,
                             float* mean_residual, uint8_t* message);

}  // namespace narrowcast::collectives
