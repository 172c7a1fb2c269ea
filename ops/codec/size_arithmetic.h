// Arithmetic of sizes that are int64_t or c10::SymInt.
#pragma once

#include <type_traits>

#include "ops/codec/host_device.h"

namespace narrowcast::codec::wire {

// The greater and the smaller of two sizes. c10::SymInt has its own functions for them, which can be traced.
template <class Integer>
NARROWCAST_HOST_DEVICE constexpr Integer greater(const Integer& a, const Integer& b) {
  if constexpr (std::is_integral_v<Integer>) {
    return a < b ? b : a;
  } else {
    return a.max(b);
  }
}

template <class Integer>
NARROWCAST_HOST_DEVICE constexpr Integer smaller(const Integer& a, const Integer& b) {
  if constexpr (std::is_integral_v<Integer>) {
    return b < a ? b : a;
  } else {
    return a.min(b);
  }
}

}  // namespace narrowcast::codec::wire
