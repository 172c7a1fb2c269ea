// The asynchronous end of an exchange.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "ops/collectives/auto_quantize/exchange.h"

namespace narrowcast::collectives {

// A work that is complete when the outputs are written. Whoever completes the group's own work decodes, in a callback
// of its future that waits for nothing: nobody need call wait. Its future's value is the list of the outputs; its
// error is c10::DistBackendError. wait takes a timeout, for the data; what was not in time may still arrive.
c10::intrusive_ptr<c10d::Work> decode_when_complete(InFlight in_flight);

}  // namespace narrowcast::collectives
