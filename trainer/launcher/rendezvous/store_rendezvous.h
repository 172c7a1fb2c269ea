// The rendezvous of a job on several nodes, through a store (store/store_protocol.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "trainer/launcher/rendezvous/rendezvous.h"
#include "trainer/launcher/rendezvous/store_link.h"

namespace narrowcast::launcher {

// Follows the decisions that a StoreLink reads, and gives up the group if no answers come.
class StoreRendezvous : public Rendezvous {
 public:
  explicit StoreRendezvous(const LinkOptions& options);

  Directive directive() override;
  void rank_succeeded(const RankOfNode& rank) override;
  void announce_start(const RankOfNode& rank) override;
  std::optional<int64_t> announced_start(const RankOfNode& rank) override;
  SilentRanks silent_ranks(const std::set<RankOfNode>& ranks) override;
  void report(const NodeReport& report) override;
  bool may_leave() override;
  int64_t ignored_entries() const override { return link_->state().rejected; }

 private:
  Directive before_joining() const;
  bool find_next_host(const LinkState& state);
  void follow(const std::string& store);
  void try_to_follow();
  void follow_no_more();
  std::shared_ptr<HostedStore> store_here() const;
  void renew_link(std::shared_ptr<HostedStore> hosted = nullptr);
  bool host_is_silent(const LinkState& state);
  bool never_spoke() const;

  LinkOptions options_;
  const std::shared_ptr<HostedStore> own_store_;  // where launchers were to meet, if served here from the beginning
  std::string place_;                             // the store's address, for users
  std::optional<StoreLink> link_;
  std::string followed_;                           // where the endpoint last told that the job runs
  std::optional<Clock::time_point> astray_since_;  // the store there has not been reached
  std::optional<RankOfNode> succeeded_;            // the last rank of the round that succeeded
  std::set<RankOfNode> starting_;                  // whose announced starts are not in a store yet
  int64_t starts_ = 0;                             // the largest number of a start that this launcher has announced
  std::map<int64_t, std::string> gone_;            // hosts of the round that were given up, and why
  int64_t round_ = -1;                             // the last round that was run
  int64_t reported_round_ = -2;
  Clock::time_point renewed_;  // when the link was made anew
  int64_t answers_ = 0;        // LinkState::answers at the last call
  Clock::time_point began_;
  PatientClock clock_;
  Clock::time_point heard_ = clock_.now();  // time of the last new answer
  std::optional<Directive> over_;           // the last directive: this launcher ends
  std::string lost_;                        // why the group is lost for good; empty: it is not lost
  std::optional<Clock::time_point> over_since_;
  int signal_ = 0;  // received by this launcher; 0: none
};

// A launcher's own state.
struct NodeState {
  int64_t ticket = 0;
  int64_t round = -1;           // the last round that it has run
  int64_t reported_round = -2;  // the last round in which it has reported
  bool interrupted = false;     // a signal came; no workers are started after it
  std::string master_addr;      // address of the store
  int64_t master_port = 0;
  int64_t max_restarts = 0;
  bool nodes_change = false;  // with c10d, or with recovery in place
};

// Translates `decision` into an instruction for that launcher.
Directive directive_for(const Decision& decision, const NodeState& state);

}  // namespace narrowcast::launcher
