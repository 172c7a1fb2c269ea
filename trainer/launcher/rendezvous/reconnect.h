// Another connection of a launcher to a host that lives.
#pragma once

#include <chrono>
#include <functional>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "trainer/launcher/store/hosted_store.h"

namespace narrowcast::launcher {

// A connection may break though its host lives, e.g. when a device between them forgets it. Returns another one.
// Returns null if nobody listens there any more, if another host does, if `patience` ends before, or if `pauses`
// returns false. `pauses` waits for the given time before each attempt. `is_same` asks whether the same host serves the
// store. It throws c10::DistNetworkError if that connection breaks, too. `broken` is a client of a TCPStore.
StorePtr reconnect(const c10d::Store& broken, std::chrono::milliseconds patience,
                   const std::function<bool(std::chrono::milliseconds)>& pauses,
                   const std::function<bool(const StorePtr&)>& is_same);

}  // namespace narrowcast::launcher
