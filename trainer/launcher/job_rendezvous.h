// The rendezvous that a job needs, with what it stands on: a socket and a store, if this launcher serves them.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "trainer/launcher/group/hosted_store.h"
#include "trainer/launcher/group/store_socket.h"
#include "trainer/launcher/launch_plan.h"
#include "trainer/launcher/node_count.h"
#include "trainer/launcher/rendezvous.h"
#include "trainer/launcher/rendezvous_options.h"

namespace narrowcast::launcher {

struct GroupRequest {
  NodeCount nodes;
  std::string backend = "static";          // or "c10d"; of no account with one node
  int64_t node_rank = 0;                   // static: this node's
  Endpoint endpoint{.host = "127.0.0.1"};  // where the store is served; port 0, with one node: any free one
  EndpointFlags endpoint_flags{};          // how the user gave it
  std::string local_addr;                  // of this node; empty: the endpoint's where it serves
  std::string rdzv_id;                     // a name for the job; empty: made up
  RendezvousOptions options;
  int64_t max_restarts = 0;
};

// Whether the launcher that was asked so serves the store. With c10d it may have to find out; that is no.
bool surely_serves(const GroupRequest& request);

class JobRendezvous {
 public:
  // Starts to serve or to look for the store. Throws c10::ValueError if it cannot be served as asked for. Looks names
  // up, which may take as long as the machine's resolver does.
  JobRendezvous(const GroupRequest& request, const LaunchOptions& launch, std::chrono::milliseconds monitor_interval);

  Rendezvous& get() { return *rendezvous_; }

 private:
  void serve(const GroupRequest& request);
  void serve_if_own(const GroupRequest& request);
  void join(const GroupRequest& request, const LaunchOptions& launch, std::chrono::milliseconds monitor_interval);

  std::optional<network::ListeningSocket> socket_;
  std::optional<HostedStore> store_;
  std::unique_ptr<Rendezvous> rendezvous_;
};

}  // namespace narrowcast::launcher
