// How launchers that have lost the host find the one that takes over (group/succession.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "trainer/launcher/group/succession.h"
#include "trainer/launcher/store/hosted_store.h"
#include "trainer/launcher/store/sealed_entries.h"

namespace narrowcast::launcher {

struct NextHost {
  int64_t ticket = 0;                        // of the next host
  StorePtr store = {};                       // the one that it serves
  std::shared_ptr<HostedStore> hosted = {};  // the same, if this launcher is the next host; else null
  Succession succession = {};                // with those that do not answer as lost, and the address of the store
};

// Returns the first member that serves a store in place of the lost host. If none before this launcher does, it serves
// one itself, on `standby`. With null, which is for a launcher that is no member, it throws c10::DistNetworkError then.
// Each member before it has `patience` to notice the loss; one that has ended is known at once. Throws what HostedStore
// throws.
NextHost find_next_host(Succession succession, const Standby* standby, std::chrono::milliseconds patience);

}  // namespace narrowcast::launcher
