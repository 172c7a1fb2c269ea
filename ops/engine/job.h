// What an engine (ops/engine/engine.h) runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "ops/engine/transport.h"

namespace narrowcast::engine {

// One exchange of messages between the ranks of a group, for instance the mean
// of one gradient bucket. All ranks submit the same exchanges in the same order.
//
// Rules that keep an exchange from waiting for itself:
//   - start posts every receive of the exchange, those of later hops included,
//     before its first send: then no message ever waits for its receiver.
//   - start does not wait for messages. Another exchange may still be unfinished.
//   - advance waits for messages that other ranks send in start, or in the advance of
//     the same exchange before they wait there for any of its messages that are not of
//     start; finish also for those that they send in advance.
//   - what a rank skips because it is empty, its peer skips as well.
// All run on the engine's thread, in this order. Tensors they hand to the transport
// stay untouched until finish has returned.
class Job {
 public:
  virtual ~Job() = default;

  // What errors call this exchange, for instance "quantize_per_tensor of bucket 3".
  virtual std::string name() const = 0;

  // Posts the receives, encodes and sends what needs nothing from other ranks.
  virtual void start(Transport& transport) = 0;

  // Sends what needs the messages of the first hop. Other exchanges may start and
  // advance before this one finishes. An exchange of one hop has nothing to do here.
  virtual void advance(Transport& /*transport*/) {}

  // Waits for messages and decodes them. Returns the value of the exchange's future.
  virtual at::Tensor finish(Transport& transport) = 0;
};

}  // namespace narrowcast::engine
