// The elements at whose multiples every array can be split into messages, on all devices.
#pragma once

#include <cstdint>

namespace narrowcast::codec::wire {

// Starts a block in every wire format, except sparse ones, whose blocks start with the message.
inline constexpr int64_t kWireGrain = 1024;

}  // namespace narrowcast::codec::wire
