// Copies of float32 from one order of elements to another.
#pragma once

#include "ops/cpu/wire/grain_order.h"

namespace narrowcast::cpu {

// Number i of `to` becomes number i of `from`, for to.n of them; the two overlap nowhere. Runs on the calling thread.
// Long arrays are written past the caches, so that their memory is not read before, and grains that are dealt out are
// asked for ahead of time: the processor sees no stream in them.
void copy_elements(const WireInput<float>& from, const WireOutput& to);

}  // namespace narrowcast::cpu
