// The host's part of the protocol of launchers (store_protocol.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trainer/base/network/places.h"
#include "trainer/launcher/group/coordinator.h"
#include "trainer/launcher/group/group.h"
#include "trainer/launcher/group/succession.h"
#include "trainer/launcher/store/sealed_entries.h"

namespace narrowcast::launcher {

// Serves the protocol to all launchers of the job.
class StoreHost {
 public:
  // Writes the first decision. `before_round` is called before each round, and removes the entries of its workers. With
  // recovery in place the workers' places are written then (worker_entries.h). A `seal` with a secret must have a
  // session.
  StoreHost(StorePtr store, Coordinator coordinator, std::function<void()> before_round, const JobSeal& seal = {},
            std::chrono::milliseconds pause = {});

  // To be called before the first step() if this host, and its coordinator, take over from another. It decides only
  // when the other members have joined, or `patience` has passed. Members that do not join are lost.
  void take_over(const Succession& succession, std::chrono::milliseconds patience);

  const Decision& decision() const { return coordinator_.decision(); }

  // Reads all nodes' entries, decides, and publishes the decision.
  void step(Clock::time_point now);

  bool everyone_left() const { return coordinator_.everyone_left(); }

  // Number of launchers that the host keeps in memory.
  int64_t known_nodes() const { return coordinator_.known_nodes(); }

  // As StoreMember::rejected.
  int64_t rejected() const { return entries_.rejected(); }

 private:
  // Waiting for the members of a round that is continued.
  struct Gathering {
    Succession succession;
    std::chrono::milliseconds patience;
    std::optional<Clock::time_point> since = {};
    std::optional<Clock::time_point> complete_since = {};  // all members that may still come have joined
  };
  bool is_gathering(Clock::time_point now);
  bool has_joined(int64_t ticket) const;
  std::set<int64_t> awaited() const;
  bool has_missing_spares() const;
  void end_gathering();
  std::vector<NodeView> look();
  void look_at_ranks();
  rendezvous::Places places_of(const Decision& decision) const;
  int64_t tickets_drawn();
  void look_for_newcomers();
  void welcome(int64_t ticket);
  std::optional<NodeView> introduced(int64_t ticket);
  void look_at_sealed(NodeView& node);
  void look_at_plain();
  void read(NodeView& node, const std::vector<std::optional<std::string>>& texts);
  void prepare(const Decision& decision);
  void publish(const Decision& decision);
  void forget_nodes();
  void give_sign();

  SealedEntries entries_;
  Coordinator coordinator_;
  const std::function<void()> before_round_;
  std::vector<NodeView> nodes_;
  int64_t tickets_ = 0;           // number of tickets drawn, as far as known
  std::deque<int64_t> expected_;  // tickets whose launchers have not introduced themselves
  std::string published_;
  Decision prepared_ = {.round = -1};  // the last decision by which workers run
  rendezvous::Places places_ = {};     // the last ones that were announced
  const std::chrono::milliseconds pause_;
  int64_t steps_ = 0;
  std::optional<Gathering> gathering_;
  std::map<int64_t, std::string> welcomed_;  // By ticket, the hello that was answered.
  // Nodes of the round that are gone, and when their ranks' entries are removed once more.
  std::deque<std::pair<Clock::time_point, rendezvous::NodeRanks>> gone_;
  Clock::time_point now_;
};

}  // namespace narrowcast::launcher
