// Messages in the variable formats (ops/codec/variable_width.h, docs/reference/wire-format.md) over arrays in device
// memory. The bytes equal the codec's, and so do the floats, except for the bits of a NaN.
//
// The step depends on all elements, and no element can be encoded without it; the position of a block depends on the
// headers of all blocks before it. So each function launches several kernels in sequence, which pass results through
// scratch memory. They run on `stream`, of the current device, and the functions do not wait. All pointers are to
// device memory, are aligned for their elements only, and may be null if n is 0. Errors:
// - std::invalid_argument: a value is not a valid FloatType, or no kernel accepts the number of ranks.
// - std::runtime_error: a kernel cannot be launched.
#pragma once

#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/cuda/launch/launch_arguments.h"
#include "ops/cuda/wire/wire_kernels.h"

namespace narrowcast::cuda {

// The positions of a range's grains, of kWireGrain elements each, in its array. The range begins with grain
// `first` of the order in which the array is sent. Grain g < `dealt` of that order is the array's grain g * stride mod
// dealt; other grains keep their index (ElementOrder of ops/collectives/all_reduce/array/element_order.h). A grain's
// elements are contiguous.
struct VariablePlaces {
  int64_t first = 0;
  int64_t dealt = 0;
  int64_t stride = 1;

  // The first element of one of the range's grains.
  NARROWCAST_HOST_DEVICE int64_t element(int64_t grain_of_range) const {
    const int64_t grain = first + grain_of_range;
    return (grain < dealt ? grain * stride % dealt : grain) * kWireGrain;
  }
};

// A range, and the destination of its message.
struct VariableEncodeArguments {
  int bits_per_element = 0;
  FloatType type = FloatType::kFloat32;  // x's type.
  const void* x = nullptr;               // The array that contains the range.
  VariablePlaces places = {};            // Places of the range in x.
  int64_t n = 0;
  float* residual = nullptr;  // Like EncodeArguments::residual, in the order in which the range is sent.
  float* spent = nullptr;     // Null, or n numbers contained in x that are set to 0, unless the message is NaN.
  Rounding rounding = {};
  uint8_t* message = nullptr;
  void* scratch = nullptr;  // variable_encode_scratch(n) bytes, aligned to 8.
};

// All ranks' contributions to the mean of a range, and the destination of the mean.
struct VariableAverageArguments {
  int bits_per_element = 0;
  RankParts parts = {};                  // Messages of any bytes, at most 65,535 ranks. The own residual does not
                                         // change.
  VariablePlaces own_places = {};        // Places of the range in parts.own, which is the array.
  FloatType type = FloatType::kFloat32;  // mean's type.
  void* mean = nullptr;                  // An array; may be parts.own if the places are the same.
  VariablePlaces mean_places = {};       // Places of the range in mean.
  void* scratch = nullptr;               // variable_average_scratch(n, ranks) bytes, aligned to 8.
};

// Bytes of scratch memory for one call at a time.
int64_t variable_encode_scratch(int64_t n);
int64_t variable_average_scratch(int64_t n, int64_t ranks);

// Writes the message of x.
void variable_encode(const VariableEncodeArguments& arguments, Stream stream);

// Writes the mean of all parts, summed as in wire_average; for a single message, its decoded elements.
void variable_average(const VariableAverageArguments& arguments, Stream stream);

}  // namespace narrowcast::cuda
