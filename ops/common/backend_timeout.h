// The time limit of a backend's collectives and messages.
#pragma once

#include <c10/util/Exception.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace narrowcast {

// c10d's default if the backend does not publish its options.
inline std::chrono::milliseconds timeout_of(c10d::Backend& backend) {
  try {
    return backend.getBackendOptions()->timeout;
  } catch (const c10::Error&) {
    return kBackendDefaultTimeout;
  }
}

}  // namespace narrowcast
