// The codec of sparse formats on the CPU.
#pragma once

#include <memory>

#include "ops/collectives/all_reduce/codec/wire_codec.h"

namespace narrowcast::collectives {

// Slices must be in the array's own order.
std::unique_ptr<const WireCodec> make_sparse_codec(WireFormat format);

}  // namespace narrowcast::collectives
