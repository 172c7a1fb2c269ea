// A job's rendezvous, with the socket and the store if this launcher serves them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trainer/base/network/addresses.h"
#include "trainer/base/program/job_secret.h"
#include "trainer/launcher/group/restart_rule.h"
#include "trainer/launcher/job/launch_plan.h"
#include "trainer/launcher/rendezvous/rendezvous.h"
#include "trainer/launcher/rendezvous/rendezvous_options.h"
#include "trainer/launcher/store/hosted_store.h"

namespace narrowcast::launcher {

// A job's nodes and how they find each other, as given by the user.
struct GroupRequest {
  NodeCount nodes = {};
  std::string backend = kStaticBackend;           // or kElasticBackend; ignored with one node
  int64_t node_rank = 0;                          // this node's rank, with the static backend
  Endpoint endpoint{.host = network::kLoopback};  // address of the store; port 0, with one node: any free port
  EndpointFlags endpoint_flags{};                 // the flags by which the user gave it
  std::string local_addr = {};                    // this node's address; empty: the endpoint's if it serves the store
  std::string rdzv_id = {};                       // the job's name; empty: generated
  RendezvousOptions options = {};
  int64_t max_restarts = 0;
  std::optional<program::JobSecret> secret = {};  // shared by all launchers of the job
};

// Returns whether the launcher with this request serves the store. Returns false if that is not known yet, as may be
// with c10d.
bool surely_serves(const GroupRequest& request);

// Returns whether it may ever serve the store: from the beginning, or, with recovery in place, when it takes over.
bool may_serve(const GroupRequest& request, const LaunchOptions& launch);

// Functions by which a LocalRendezvous uses the job's store. The defaults do nothing.
struct LocalEntries {
  std::function<void()> before_round = [] {};  // called before each round
  std::function<void(const RankOfNode&)> succeeded = [](const auto&) {};
  std::function<int64_t(const RankOfNode&)> announce_start = [](const auto&) { return 1; };  // as in worker_entries.h
  std::function<SilentRanks(const std::set<RankOfNode>&)> silent = [](const auto&) { return SilentRanks(); };
};

// The rendezvous of a job on one node: it decides alone.
class LocalRendezvous : public Rendezvous {
 public:
  // `first` is the first round.
  explicit LocalRendezvous(Round first, LocalEntries entries = {});

  Directive directive() override;
  void rank_succeeded(const RankOfNode& rank) override { entries_.succeeded(rank); }
  void announce_start(const RankOfNode& rank) override { starts_[rank] = entries_.announce_start(rank); }
  std::optional<int64_t> announced_start(const RankOfNode& rank) override { return starts_.at(rank); }
  SilentRanks silent_ranks(const std::set<RankOfNode>& ranks) override { return entries_.silent(ranks); }
  void report(const NodeReport& report) override;
  bool may_leave() override { return true; }

 private:
  Round round_;
  const LocalEntries entries_;
  std::map<RankOfNode, int64_t> starts_;  // results of announce_start
  RestartRule restarts_;
  std::optional<GroupEnd> end_;  // end of the previous round
  bool over_ = false;
};

// A warning if users gave `host` by `flag` as the address of the store, and it is a name that this machine resolves to
// loopback addresses alone, as some systems' /etc/hosts does with the machine's own name. Launchers on other machines
// then wait in vain. Else empty, also if this machine has no other address.
std::string warning_of_loopback(const std::string& flag, const std::string& host,
                                const std::vector<std::string>& addresses_of_host,
                                const std::vector<std::string>& own_addresses);

// A LocalRendezvous for one node, or a StoreRendezvous for several nodes.
class JobRendezvous {
 public:
  // Starts to serve the store, or to connect to it. Throws c10::ValueError if it cannot be served as requested. The
  // name lookup may take as long as the machine's resolver does.
  JobRendezvous(const GroupRequest& request, const LaunchOptions& launch, std::chrono::milliseconds monitor_interval);

  // The rendezvous, which this object owns.
  Rendezvous& get() { return *rendezvous_; }

  // warning_of_loopback of a job on several nodes. Empty: none.
  const std::string& warning() const { return warning_; }

 private:
  void serve(const GroupRequest& request);
  void serve_if_own(const GroupRequest& request);
  void serve_unless_disagreed(const GroupRequest& request);
  std::shared_ptr<const Standby> standby(const GroupRequest& request, const LaunchOptions& launch) const;
  void join(const GroupRequest& request, const LaunchOptions& launch, std::chrono::milliseconds monitor_interval);

  std::optional<network::ListeningSocket> socket_;
  std::shared_ptr<EndpointStore> endpoint_;  // null: whether this launcher serves the store was known at once
  std::shared_ptr<HostedStore> store_;       // null: another launcher serves it
  std::unique_ptr<Rendezvous> rendezvous_;
  std::string warning_;
};

}  // namespace narrowcast::launcher
