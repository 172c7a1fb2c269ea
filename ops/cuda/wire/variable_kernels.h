// Messages in the variable formats (ops/codec/variable_width.h, docs/wire_format.md) over arrays in device memory: the
// same bytes and, but for the bits of a NaN, the same floats as the codec.
//
// All elements determine the step, without which none can be written; and the headers of all blocks before it where a
// block is. So each function launches several kernels, one behind the other, that leave what they have found in
// scratch memory. They go to `stream`, of the device that is current, and nobody waits. All pointers are to device
// memory, need the alignment of their elements and no more, and may be null where n is 0. std::invalid_argument for a
// number that is no FloatType, or for ranks that no kernel takes; std::runtime_error if a kernel cannot be launched.
#pragma once

#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/cuda/launch/launch_arguments.h"
#include "ops/cuda/wire/wire_kernels.h"

namespace narrowcast::cuda {

// Where the grains of a segment lie in its array, of kShardGrain elements: it begins with grain `first` of the order in
// which the array travels, and of that grain g < `dealt` is the array's g * stride mod dealt (ElementOrder of
// ops/collectives/all_reduce/array/element_order.h). The rest of a grain follows its first element.
struct VariablePlaces {
  int64_t first = 0;
  int64_t dealt = 0;
  int64_t stride = 1;

  // The first element of one of the segment's grains.
  NARROWCAST_HOST_DEVICE int64_t element(int64_t grain_of_segment) const {
    const int64_t grain = first + grain_of_segment;
    return (grain < dealt ? grain * stride % dealt : grain) * kShardGrain;
  }
};

// A segment, and where its message goes.
struct VariableEncodeArguments {
  int bits_per_element = 0;
  FloatType type = FloatType::kFloat32;  // x's.
  const void* x = nullptr;               // The array, of which n elements
  VariablePlaces places = {};            // from there on are written.
  int64_t n = 0;
  float* residual = nullptr;  // As EncodeArguments::residual, in the order in which the segment travels.
  float* spent = nullptr;     // Null, or n numbers that are set to 0 unless the message is NaN: those that are in x.
  Rounding rounding = {};
  uint8_t* message = nullptr;
  void* scratch = nullptr;  // variable_encode_scratch(n) bytes, aligned to 8.
};

// What all ranks contribute to the mean of a segment, and where that goes.
struct VariableAverageArguments {
  int bits_per_element = 0;
  RankParts parts = {};                  // Messages of any bytes. At most 65,535 ranks. The own residual stays.
  VariablePlaces own_places = {};        // Of the segment in parts.own, which is the array.
  FloatType type = FloatType::kFloat32;  // mean's.
  void* mean = nullptr;                  // An array; may be parts.own, if the places are the same.
  VariablePlaces mean_places = {};       // Of the segment in it.
  void* scratch = nullptr;               // variable_average_scratch(n, ranks) bytes, aligned to 8.
};

// One message by itself.
inline RankParts only_message(const uint8_t* message, int64_t n) {
  RankParts parts;
  parts.first = message;
  parts.ranks = 1;
  parts.own_rank = 1;
  parts.n = n;
  return parts;
}

// Bytes of scratch memory for one call at a time.
int64_t variable_encode_scratch(int64_t n);
int64_t variable_average_scratch(int64_t n, int64_t ranks);

// Writes the message of x.
void variable_encode(const VariableEncodeArguments& arguments, Stream stream);

// Writes the mean of all parts, summed as in wire_average; of one message what that says.
void variable_average(const VariableAverageArguments& arguments, Stream stream);

}  // namespace narrowcast::cuda
