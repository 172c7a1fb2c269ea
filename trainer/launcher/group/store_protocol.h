// How launchers talk through the store, which the first of them serves (c10d's TCPStore).
//
// Every key has one writer, so that nothing is ever overwritten by mistake and no compare-and-set is needed; only the
// counter that hands out tickets is everybody's. The launcher that serves the store also decides (coordinator.h): if it
// goes, the store goes, so a decision that were shared among all would survive nothing more. All keys begin with
// kLauncherKeys.
//
//   key                 written by      holds
//   decision            the host        what the group is to do: phase, round, members, why the last round ended
//   steps               the host        "STEPS MS": a counter that grows as it decides, and its pause between two steps
//   tickets             add, everybody  how many launchers came; the value after one's own add is one's ticket
//   node/T/beat         launcher T      a counter that grows as long as it lives
//   node/T/report       launcher T      how its workers ended in which round; empty before the first time
//   node/T/left         launcher T      "0", then "1" when it has seen that the job is over
//   node/T/description  launcher T      host, process, workers, flags; written last, so that the others are there
//
// The host writes `decision` before anybody else comes. A launcher joins: it draws a ticket and writes its node/T keys.
// From then on, every monitor_interval,
//
//   - each launcher grows its beat, now and then, and reads `decision`. If a round runs and it is a member, it starts
//     its workers, and reports when they have ended, by themselves or because the decision no longer says that this
//     round runs.
//   - the host also reads all nodes' keys, decides, and writes `decision` if it changed. Before a round begins it
//     removes every key of the workers of the round before.
//
// Whatever cannot be read of what a launcher wrote turns that launcher away, as if it were lost, and nobody else.
//
// With a secret of the job all entries but the tickets are sealed (sealed_entries.h): then what a stranger writes is
// ignored, and what he overwrote or removed is read from its copy, and written again. A launcher that has drawn its
// ticket first learns the session:
//
//   node/T/hello        launcher T      a number that nobody can foretell; sealed in no session
//   node/T/welcome      the host        the session, and how many `steps` were written; sealed in a session that is
//                                       that number, so that it is an answer to it. Each ticket is answered once
//
// So a round begins on all nodes when they see it decided, and ends on all of them when one reports; the next is
// decided when all members have reported or are lost. When the job is over each launcher writes `left`; the host stays
// until all have, so that nobody finds it gone too early.
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

// A sign of the host.
struct HostSign {
  int64_t steps = 0;                   // How often it has decided,
  std::chrono::milliseconds pause{0};  // and how long it may pause between two times.
  int64_t spoiled = 0;                 // How many looks found the sign overwritten or removed.
};

// A launcher's part. All functions throw what the store throws (c10::DistError) and
// CorruptInputError if it holds something else.
class StoreMember {
 public:
  explicit StoreMember(StorePtr store, const JobSeal& seal = {}) : entries_(std::move(store), seal) {}

  // Whether a host serves this store: a store of something else has no decision.
  bool has_host();
  // Draws a ticket and introduces the node; with a secret once a host that knows it has answered. To be called until it
  // returns true.
  bool join(const NodeDescription& node);
  // The same for the launcher that serves the store, which has the first ticket. Before the others find a host.
  void join_as_host(const NodeDescription& node);
  int64_t ticket() const { return ticket_; }

  void beat();
  void report(const RoundReport& report);
  void leave();
  Decision decision();
  // What the host says of itself; the same again where it has not gone on.
  HostSign host_sign();

  // How many entries were ignored: SealedEntries::rejected.
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

// The part of the launcher that serves the store.
class StoreHost {
 public:
  // Writes the first decision. `before_round` is called before a round begins. A secret has a session.
  StoreHost(StorePtr store, Coordinator coordinator, std::function<void()> before_round, const JobSeal& seal = {},
            std::chrono::milliseconds pause = {});

  const Decision& decision() const { return coordinator_.decision(); }

  // Looks at all nodes, decides, and tells.
  void step(Clock::time_point now);

  bool everyone_left() const { return coordinator_.everyone_left(); }

  // As StoreMember's.
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
  void publish(const Decision& decision);
  void give_sign();

  SealedEntries entries_;
  Coordinator coordinator_;
  const std::function<void()> before_round_;
  std::vector<NodeView> nodes_;
  int64_t tickets_ = 0;           // that were drawn, as far as is known,
  std::deque<int64_t> expected_;  // and those of them whose launchers have not introduced themselves
  std::string published_;
  int64_t prepared_round_ = -1;
  const std::chrono::milliseconds pause_;
  int64_t steps_ = 0;
  std::map<int64_t, std::string> welcomed_;  // By ticket, the hello that was answered.
};

}  // namespace narrowcast::launcher
