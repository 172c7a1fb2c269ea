// The protocol of launchers: entries in a store that one of them, the host, serves (c10d's TCPStore).
//
// Each key has one writer, so nothing is overwritten by mistake and no compare-and-set is needed. The exception is the
// ticket counter, to which all launchers add. The host also decides for the group (coordinator.h). If the host ends,
// the store ends, and another launcher may serve a new one (succession.h). All keys begin with kLauncherKeys.
//
//   key                   written by   value
//   `decision`            the host     The decision: phase, round, members, end of the last round.
//   `moved/ID`            a host       "HOST:PORT" of the store where the job with that --rdzv_id, or with none,
//                                      already runs: that host took over.
//   `steps`               the host     "STEPS MS": a heartbeat counter, and the pause between two steps.
//   `tickets`             all, by add  Number of launchers that came. The result of add is the launcher's ticket. A
//                                      launcher that comes with its ticket from another store makes it large enough.
//   `node/T/beat`         launcher T   "N ROUND CHANGES": a heartbeat counter, and the last change that it has read.
//   `node/T/report`       launcher T   The end of its workers and the round; empty before the first report.
//   `node/T/left`         launcher T   "0"; "1" once it has seen that the job is over.
//   `node/T/description`  launcher T   Host, process, workers, flags. Written after its other keys.
//
// The host writes `decision` before any other launcher comes. A launcher joins: it draws a ticket and writes its node/T
// keys. From then on, every monitor_interval:
//
//   - Each launcher increments its beat every keep_alive_interval, and reads `decision`. If a round runs and the
//     launcher is a member, it starts its workers. It reports when they have ended, or when it has ended them because
//     the round no longer runs.
//   - The host also reads all nodes' keys, decides, and writes `decision` if it changed. Before a round begins it
//     removes all keys of the workers of the previous round.
//
// A launcher whose entries cannot be read is turned away as if it were lost. The other launchers are not affected.
//
// With a secret of the job all entries of launchers except the ticket counter are sealed (sealed_entries.h). Entries of
// an attacker are then ignored. Entries that an attacker has overwritten or removed are read from their copies, and
// written again. A launcher that has drawn its ticket first learns the session:
//
//   `node/T/hello`        launcher T   A random number; sealed in no session.
//   `node/T/welcome`      the host     The session, and the number of `steps` written. Sealed with the hello as its
//                                      session, which proves that it answers this hello. One answer per ticket.
//
// A round begins on all nodes when they read that it runs, and ends on all of them when one reports. The next round is
// decided when all members have reported or are lost. When the job is over each launcher writes `left`. The host stays
// until all have done so, because the store ends with it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "trainer/launcher/store/hosted_store.h"

namespace narrowcast::launcher {

// The largest value that a store takes, in bytes.
inline constexpr size_t kMostBytesOfADecision = size_t{8} << 20;

// The key with that name, and the key of a launcher with that ticket.
inline std::string launcher_key(const std::string& name) { return kLauncherKeys + name; }
inline std::string node_key(int64_t ticket, const std::string& name) {
  return launcher_key("node/" + std::to_string(ticket) + "/" + name);
}

// Makes the number of tickets drawn at least `tickets`.
void reserve_tickets(c10d::Store& store, int64_t tickets);

// Parses an entry that is a number. Throws CorruptInputError if it is none.
int64_t stored_number(const std::string& value);

}  // namespace narrowcast::launcher
