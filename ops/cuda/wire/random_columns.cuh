// The random words of a lane's elements (codec/wire/rounding.h).
#pragma once

#include <cstdint>

#include "ops/codec/wire_rounding.h"
#include "ops/cuda/wire/array_elements.cuh"

namespace narrowcast::cuda {

// The words of the kColumns elements from element `first` on: of one quad of the generator, or of two where the array
// begins within one. Selects instead of indices, which would put the words into local memory.
__device__ __forceinline__ codec::wire::PhiloxWords random_columns(const codec::wire::Rounding& rounding, int first) {
  const uint64_t position = rounding.position + static_cast<uint64_t>(first);
  codec::wire::PhiloxWords words = codec::wire::random_words(rounding, position / kColumns);
  const auto skipped = static_cast<int>(position % kColumns);
  if (skipped == 0) {
    return words;
  }
  codec::wire::PhiloxWords next = codec::wire::random_words(rounding, position / kColumns + 1);
  if (skipped % 2 != 0) {
    words = {{words.word[1], words.word[2], words.word[3], next.word[0]}};
    next = {{next.word[1], next.word[2], 0, 0}};
  }
  if (skipped >= 2) {
    words = {{words.word[2], words.word[3], next.word[0], next.word[1]}};
  }
  return words;
}

}  // namespace narrowcast::cuda
