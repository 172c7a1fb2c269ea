// Ends an attempt of Gloo to connect the ranks of a job.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "trainer/base/network/addresses.h"

namespace narrowcast::rendezvous {

// A rank publishes it for the others, so that they connect to it: Gloo's TCP address with the numbers by which the
// ranks name their connections.
struct GlooAddress {
  network::SocketAddress place;
  std::vector<int64_t> numbers;  // one for each rank; empty: the ranks themselves

  // Reads an entry of Gloo, in this machine's byte order. Empty for other bytes.
  static GlooAddress parse(const std::vector<uint8_t>& bytes);

  bool is_empty() const { return place.length == 0; }
};

// While a rank connects to the others, some of them connect to it. If one of these dies before, Gloo waits for it until
// the time-out, on a thread with sockets, and nothing in its interface ends this. So this rank itself connects to its
// socket in place of the others: then Gloo has all connections, and finds that they are closed.
class GlooListener {
 public:
  // `keys` are those in which the ranks find each other.
  explicit GlooListener(c10::intrusive_ptr<c10d::Store> keys);

  // The same keys, for Gloo.
  const c10::intrusive_ptr<c10d::Store>& keys() const { return keys_; }

  // Ends waits for other ranks to connect. Does nothing before Gloo waits: then it may be called again. Thread-safe.
  // Throws nothing.
  void end_waits(int64_t world_size) const;

 private:
  struct Published;

  std::shared_ptr<Published> published_;
  c10::intrusive_ptr<c10d::Store> keys_;
};

}  // namespace narrowcast::rendezvous
