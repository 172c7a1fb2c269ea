// The protocol of launchers: entries in a store that one of them, the host, serves (c10d's TCPStore).
//
// Each key has one writer, so nothing is overwritten by mistake and no compare-and-set is needed. The exception is the
// ticket counter, to which all launchers add. The host also decides for the group (coordinator.h). If the host ends,
// the store ends, so a decision that all launchers shared would be no more robust. All keys begin with kLauncherKeys.
//
//   key                   written by   value
//   `decision`            the host     The decision: phase, round, members, end of the last round.
//   `steps`               the host     "STEPS MS": a heartbeat counter, and the pause between two steps.
//   `tickets`             all, by add  Number of launchers that came. The result of add is the launcher's ticket.
//   `node/T/beat`         launcher T   A heartbeat counter.
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

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "trainer/launcher/group/coordinator.h"
#include "trainer/launcher/group/group.h"
#include "trainer/launcher/group/sealed_entries.h"

namespace narrowcast::launcher {

// A heartbeat of the host.
struct HostSign {
  int64_t steps = 0;                   // Number of its decisions.
  std::chrono::milliseconds pause{0};  // Longest pause between two decisions.
  int64_t spoiled = 0;                 // Reads that found the heartbeat overwritten or removed.
};

// A launcher's part of the protocol. All functions throw what the store throws (c10::DistError), and CorruptInputError
// if the store holds invalid entries.
class StoreMember {
 public:
  explicit StoreMember(StorePtr store, const JobSeal& seal = {}) : entries_(std::move(store), seal) {}

  // Returns whether a host serves this store: another program's store has no decision.
  bool has_host();
  // Draws a ticket and writes the node's entries; with a secret only after a host with the same secret has answered.
  // The caller repeats the call until it returns true.
  bool join(const NodeDescription& node);
  // The same for the host, which has the first ticket. It must be called before other launchers find the host.
  void join_as_host(const NodeDescription& node);
  int64_t ticket() const { return ticket_; }

  void beat();
  void report(const RoundReport& report);
  void leave();
  Decision decision();
  // Returns the host's last heartbeat; the same value again if there is no new one.
  HostSign host_sign();

  // Number of ignored entries: SealedEntries::rejected.
  int64_t rejected() const { return entries_.rejected(); }

 private:
  std::string own_key(const std::string& name) const;

  bool knows_session();
  void introduce(const NodeDescription& node);

  SealedEntries entries_;
  std::string hello_;
  Clock::time_point said_hello_;
  int64_t ticket_ = 0;
  int64_t beats_ = 0;
  bool is_described_ = false;
};

// The host's part of the protocol.
class StoreHost {
 public:
  // Writes the first decision. `before_round` is called before each round, and removes the entries of its workers. With
  // recovery in place the workers' places are written then (worker_entries.h). A `seal` with a secret must have a
  // session.
  StoreHost(StorePtr store, Coordinator coordinator, std::function<void()> before_round, const JobSeal& seal = {},
            std::chrono::milliseconds pause = {});

  const Decision& decision() const { return coordinator_.decision(); }

  // Reads all nodes' entries, decides, and publishes the decision.
  void step(Clock::time_point now);

  bool everyone_left() const { return coordinator_.everyone_left(); }

  // As StoreMember::rejected.
  int64_t rejected() const { return entries_.rejected(); }

 private:
  std::vector<NodeView> look();
  int64_t tickets_drawn();
  void look_for_newcomers();
  void welcome(int64_t ticket);
  std::optional<NodeView> introduced(int64_t ticket);
  void look_at_sealed(NodeView& node);
  void look_at_plain();
  void read(NodeView& node, const std::vector<std::optional<std::string>>& texts);
  void prepare(const Decision& decision);
  void publish(const Decision& decision);
  void give_sign();

  SealedEntries entries_;
  Coordinator coordinator_;
  const std::function<void()> before_round_;
  std::vector<NodeView> nodes_;
  int64_t tickets_ = 0;           // number of tickets drawn, as far as known
  std::deque<int64_t> expected_;  // tickets whose launchers have not introduced themselves
  std::string published_;
  Decision prepared_ = {.round = -1};  // the last decision by which workers run
  const std::chrono::milliseconds pause_;
  int64_t steps_ = 0;
  std::map<int64_t, std::string> welcomed_;  // By ticket, the hello that was answered.
};

}  // namespace narrowcast::launcher
