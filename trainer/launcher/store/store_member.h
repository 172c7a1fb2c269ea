// A launcher's part of the protocol of launchers (store_protocol.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "trainer/launcher/group/group.h"
#include "trainer/launcher/group/succession.h"
#include "trainer/launcher/posix/worker_runner.h"
#include "trainer/launcher/store/sealed_entries.h"

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
  // Returns whether a host serves this store for a job that has not begun. With a secret, a job that has begun counts,
  // too: its decision is sealed in a session that only its launchers know.
  bool awaits_first_round();
  // Returns the host's --rdzv_backend. Empty if no host serves this store, or if its entries are sealed.
  std::string backend();
  // Returns where the job runs if it does not run here: "HOST:PORT". Empty if it does, or nobody has told yet.
  std::string moved_to();
  // Tells this job's launchers at another store that the job runs at `store`, unless it is told there already.
  void announce_move(const std::string& store);
  // Draws a ticket and writes the node's entries; with a secret only after a host with the same secret has answered.
  // The caller repeats the call until it returns true. A job that has run and is over is not joined: another may begin
  // there. One that ended before its first round is: all its launchers print why.
  bool join(const NodeDescription& node);
  // Whether the job here has run and is over. With a secret, false before the host has answered.
  bool is_over();
  // The same for the host, which has the first ticket. It must be called before other launchers find the host.
  void join_as_host(const NodeDescription& node);
  // The same as join() with the ticket that this launcher had in the store of a host that was lost. If this launcher
  // was a member, and the next host has decided without it, it writes no entries. If it waited for a place, and the
  // next host does not know of it, another launcher may have drawn its ticket there, so it draws a new one. Returns
  // false if another job runs there.
  bool join_again(const NodeDescription& node, const Succession& succession);
  // Writes the node's entries with that ticket on the host that took over.
  void join_again_as_host(const NodeDescription& node, int64_t ticket);
  int64_t ticket() const { return ticket_; }
  // Whether the host may have seen this launcher. With another ticket it would be another one.
  bool has_introduced_itself() const { return is_introduced_; }
  // From now on uses another connection to the same store.
  void reconnect(StorePtr store) { entries_.reconnect(std::move(store)); }
  // Whether the host that wrote these serves the store now.
  bool is_served_by(const Decision& last, const HostSign& sign);

  void beat();
  void report(const RoundReport& report);
  void leave();
  // From now on heartbeats tell that this launcher knows the members of the decision. Returns whether it did not
  // before.
  bool learn(const Decision& decision);
  Decision decision();
  // Returns the host's last heartbeat; the same value again if there is no new one.
  HostSign host_sign();

  // Number of ignored entries: SealedEntries::rejected.
  int64_t rejected() const { return entries_.rejected(); }

 private:
  std::string own_key(const std::string& name) const;

  bool is_let_in();
  bool knows_session();
  void draw_ticket();
  void introduce(const NodeDescription& node);

  SealedEntries entries_;
  std::string hello_;
  Clock::time_point said_hello_;
  int64_t ticket_ = 0;
  int64_t beats_ = 0;
  Change known_;
  bool draws_again_ = false;    // the host that took over does not know this launcher's ticket
  bool is_introduced_ = false;  // or about to be
  bool is_described_ = false;
};

}  // namespace narrowcast::launcher
