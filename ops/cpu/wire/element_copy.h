// Copies of float32 from one order of elements to another.
#pragma once

#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::cpu {

// Copies element i of `from` to element i of `to`, for to.n elements; the two must not overlap. Runs on the calling
// thread. Long arrays are written past the caches, so that their memory is not read first. Grains in another order are
// prefetched, since the processor does not recognise a stream in them.
void copy_elements(const WireInput<float>& from, const WireOutput& to);

}  // namespace narrowcast::cpu
