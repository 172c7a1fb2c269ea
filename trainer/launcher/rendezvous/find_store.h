// How a launcher finds the store where the launchers of its job meet, or comes to serve it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "trainer/launcher/rendezvous/rendezvous_options.h"
#include "trainer/launcher/store/hosted_store.h"
#include "trainer/launcher/store/sealed_entries.h"

namespace narrowcast::launcher {

struct StoreSearch {
  Endpoint place;
  std::chrono::milliseconds to_listen{0};  // how long to wait until somebody listens there
  std::chrono::milliseconds to_answer{0};  // and then, until it answers as a store
  std::function<bool()> pauses;            // waits before the next attempt; false: the search ends
  std::function<bool()> ends;              // returns at once whether the search ends
  // This launcher serves the store if nobody else does. Null: it never does.
  std::shared_ptr<EndpointStore> own = {};
};

struct FoundStore {
  StorePtr store = {};                       // null: the search ended
  std::shared_ptr<HostedStore> hosted = {};  // the same, if this launcher serves it; else null
};

// Finds the store. A process that listens there at first may be about to end, e.g. the launcher of an earlier job. If
// nobody listens then, all launchers that may serve the store try to, and one of them does. Throws
// c10::DistNetworkError if the time is over, or if a process listens that does not answer, and what EndpointStore
// throws.
FoundStore find_store(const StoreSearch& search);

}  // namespace narrowcast::launcher
