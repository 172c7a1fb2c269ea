// The rendezvous that a job needs, with what it stands on: a socket and a store, if this launcher serves them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "trainer/base/network/addresses.h"
#include "trainer/base/program/job_secret.h"
#include "trainer/launcher/group/hosted_store.h"
#include "trainer/launcher/group/restart_rule.h"
#include "trainer/launcher/job/launch_plan.h"
#include "trainer/launcher/rendezvous/rendezvous.h"
#include "trainer/launcher/rendezvous/rendezvous_options.h"

namespace narrowcast::launcher {

// Which nodes a job has and how they find each other, as the user gave it.
struct GroupRequest {
  NodeCount nodes = {};
  std::string backend = kStaticBackend;           // or kElasticBackend; of no account with one node
  int64_t node_rank = 0;                          // static: this node's
  Endpoint endpoint{.host = network::kLoopback};  // where the store is served; port 0, with one node: any free one
  EndpointFlags endpoint_flags{};                 // how the user gave it
  std::string local_addr = {};                    // of this node; empty: the endpoint's where it serves
  std::string rdzv_id = {};                       // a name for the job; empty: made up
  RendezvousOptions options = {};
  int64_t max_restarts = 0;
  std::optional<program::JobSecret> secret = {};  // that all launchers of the job know
};

// Whether the launcher that was asked so serves the store. With c10d it may have to find out; that is no.
bool surely_serves(const GroupRequest& request);

// The rendezvous of a job on one node: there is nobody to ask.
class LocalRendezvous : public Rendezvous {
 public:
  // `first` is the round to begin with. `before_round` is called before each one, and `succeeded` with each rank that
  // has ended well.
  LocalRendezvous(Round first, std::function<void()> before_round, std::function<void(int64_t)> succeeded);

  Directive directive() override;
  void rank_succeeded(int64_t rank) override { succeeded_(rank); }
  void report(const NodeReport& report) override;
  bool may_leave() override { return true; }

 private:
  Round round_;
  const std::function<void()> before_round_;
  const std::function<void(int64_t)> succeeded_;
  RestartRule restarts_;
  std::optional<GroupEnd> end_;  // of the round before
  bool over_ = false;
};

// A LocalRendezvous for one node, a StoreRendezvous for several.
class JobRendezvous {
 public:
  // Starts to serve or to look for the store. Throws c10::ValueError if it cannot be served as asked for. Looks names
  // up, which may take as long as the machine's resolver does.
  JobRendezvous(const GroupRequest& request, const LaunchOptions& launch, std::chrono::milliseconds monitor_interval);

  // Lives as long as this object.
  Rendezvous& get() { return *rendezvous_; }

 private:
  void serve(const GroupRequest& request);
  void serve_if_own(const GroupRequest& request);
  void join(const GroupRequest& request, const LaunchOptions& launch, std::chrono::milliseconds monitor_interval);

  std::optional<network::ListeningSocket> socket_;
  std::shared_ptr<HostedStore> store_;  // none: another launcher's
  std::unique_ptr<Rendezvous> rendezvous_;
};

}  // namespace narrowcast::launcher
