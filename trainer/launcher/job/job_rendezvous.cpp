#include "trainer/launcher/job/job_rendezvous.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <exception>

#include "trainer/base/network/addresses.h"
#include "trainer/base/network/tcp_store.h"
#include "trainer/launcher/posix/machine.h"
#include "trainer/launcher/rendezvous/store_rendezvous.h"
#include "trainer/launcher/store/store_member.h"

namespace narrowcast::launcher {
namespace {

constexpr std::chrono::milliseconds kPatienceWithAnotherHost{1000};

Round only_round(const GroupRequest& request, const LaunchOptions& launch, int64_t port) {
  return {.master_addr = request.endpoint.host,
          .master_port = port,
          .run_id = request.rdzv_id.empty() ? new_run_id() : request.rdzv_id,
          .world_size = launch.nproc_per_node,
          .role_world_size = launch.nproc_per_node,
          .max_restarts = request.max_restarts};
}

NodeDescription describe(const GroupRequest& request, const LaunchOptions& launch) {
  return {.host = request.local_addr.empty() ? host_name() : request.local_addr,
          .pid = getpid(),
          .nproc = launch.nproc_per_node,
          .node_rank = request.node_rank,
          .role = launch.role,
          .settings = {.backend = request.backend,
                       .min_nodes = request.nodes.least,
                       .max_nodes = request.nodes.most,
                       .max_restarts = request.max_restarts,
                       .rdzv_id = request.rdzv_id,
                       .in_place = launch.in_place}};
}

const std::string& own_address(const GroupRequest& request) {
  return request.local_addr.empty() ? request.endpoint.host : request.local_addr;
}

LocalEntries entries_of(const std::shared_ptr<HostedStore>& hosted, const std::string& run_id) {
  c10d::Store& store = *hosted->store();
  return {.before_round = [hosted] { hosted->forget_workers(); },
          .succeeded = [hosted, &store, run_id](const RankOfNode& rank) { announce_ended_rank(store, run_id, rank); },
          .announce_start = [hosted, &store,
                             run_id](const RankOfNode& rank) { return launcher::announce_start(store, run_id, rank); },
          .silent = [hosted, &store, run_id](const auto& ranks) { return read_silent_ranks(store, run_id, ranks); }};
}

// The --rdzv_backend of the launcher that serves the store where this one is to serve it. Empty if that is unknown.
std::string backend_at(const GroupRequest& request) {
  try {
    const StorePtr store =
        network::reach_tcp_store(own_address(request), request.endpoint.port, kPatienceWithAnotherHost);
    return StoreMember(store, {.secret = request.secret, .job = request.rdzv_id}).backend();
  } catch (const std::exception&) {
    return "";
  }
}

// The flags that gave the address where this launcher is to serve the store.
EndpointFlags flags_of(const GroupRequest& request) {
  EndpointFlags flags = request.endpoint_flags;
  if (!request.local_addr.empty()) {
    flags.address = "--local_addr";
  }
  return flags;
}

// Returns whether `host` may be an address of this machine. That includes 0.0.0.0, where serving then fails with the
// reason.
bool may_serve_at(const std::string& host) {
  int error = 0;
  return network::is_own_address(host) || network::means_all(network::find_addresses(host, error));
}

}  // namespace

LocalRendezvous::LocalRendezvous(Round first, LocalEntries entries)
    : round_(std::move(first)), entries_(std::move(entries)), restarts_(RestartRule::for_rounds(round_.max_restarts)) {
  entries_.before_round();
}

Directive LocalRendezvous::directive() {
  return {.kind = over_ ? Directive::Kind::kOver : Directive::Kind::kRun, .round = round_, .end = end_};
}

void LocalRendezvous::report(const NodeReport& report) {
  end_ = end_of_report(report);
  const bool may_restart =
      report.end == NodeReport::End::kFailed && report.signal == 0 && !report.left_behind && !report.used_up;
  over_ = !may_restart || !restarts_.allows(*end_);
  if (!over_) {
    ++round_.restart_count;
    entries_.before_round();
  }
}

bool surely_serves(const GroupRequest& request) {
  return !request.nodes.several() ||
         (request.backend == kStaticBackend ? request.node_rank == 0 && request.options.is_host.value_or(true)
                                            : request.options.is_host.value_or(false));
}

bool may_serve(const GroupRequest& request, const LaunchOptions& launch) {
  return surely_serves(request) || (request.nodes.several() && launch.in_place);
}

std::string warning_of_loopback(const std::string& flag, const std::string& host,
                                const std::vector<std::string>& addresses_of_host,
                                const std::vector<std::string>& own_addresses) {
  if (network::names_loopback(host) || addresses_of_host.empty() || own_addresses.empty() ||
      !std::ranges::all_of(addresses_of_host, network::is_loopback_address)) {
    return "";
  }
  return c10::str(flag, "=", host, ": is ", addresses_of_host.front(),
                  " on this machine, which other machines cannot reach; if there are any, give the address ",
                  c10::Join(" or ", own_addresses), " to all launchers");
}

JobRendezvous::JobRendezvous(const GroupRequest& request, const LaunchOptions& launch,
                             std::chrono::milliseconds monitor_interval) {
  if (!request.nodes.several()) {
    serve(request);
    const Round round = only_round(request, launch, socket_->port());
    rendezvous_ = std::make_unique<LocalRendezvous>(round, entries_of(store_, round.run_id));
    return;
  }
  const std::string& host = own_address(request);
  warning_ =
      warning_of_loopback(flags_of(request).address, host, network::addresses_of_host(host), network::own_addresses());
  if (surely_serves(request)) {
    serve_unless_disagreed(request);
  } else if (request.backend == kElasticBackend && !request.options.is_host) {
    serve_if_own(request);
  }
  join(request, launch, monitor_interval);
}

void JobRendezvous::serve(const GroupRequest& request) {
  socket_ = open_store_socket(own_address(request), request.endpoint.port, flags_of(request));
  store_ = std::make_shared<HostedStore>(own_address(request), *socket_);
}

// A launcher with another --rdzv_backend may serve there. If this launcher joins it, both print that they disagree.
void JobRendezvous::serve_unless_disagreed(const GroupRequest& request) {
  try {
    serve(request);
  } catch (const PortInUseError&) {
    if (const std::string other = backend_at(request); other.empty() || other == request.backend) {
      throw;
    }
    socket_.reset();
  }
}

// Several launchers may run on the endpoint's machine. The first one that listens is the host. If another process does
// now, that is probably the host. If it is not, and ends, a launcher that finds nobody there tries again.
void JobRendezvous::serve_if_own(const GroupRequest& request) {
  if (may_serve_at(request.endpoint.host)) {
    endpoint_ = std::make_shared<EndpointStore>(own_address(request), request.endpoint.port, flags_of(request));
    store_ = endpoint_->serve();
  }
}

// Listens where this launcher can serve the store if the one that does so now is lost. Null if that ends the job.
std::shared_ptr<const Standby> JobRendezvous::standby(const GroupRequest& request, const LaunchOptions& launch) const {
  if (!launch.in_place) {
    return nullptr;
  }
  const std::string towards = network::address_towards(request.endpoint.host);
  const std::string& address = store_ != nullptr            ? own_address(request)
                               : request.local_addr.empty() ? towards
                                                            : request.local_addr;
  if (address.empty()) {
    return nullptr;  // The endpoint cannot be reached either, which the link reports.
  }
  return std::make_shared<const Standby>(Standby{address, open_store_socket(address, 0, {.address = "--local_addr"})});
}

void JobRendezvous::join(const GroupRequest& request, const LaunchOptions& launch,
                         std::chrono::milliseconds monitor_interval) {
  LinkOptions options{.host = request.endpoint.host,
                      .port = request.endpoint.port,
                      .node = describe(request, launch),
                      .rendezvous = request.options,
                      .monitor_interval = monitor_interval,
                      .hosted = store_,
                      .endpoint = endpoint_,
                      .run_id = new_run_id(),
                      .seal = {.secret = request.secret, .job = request.rdzv_id},
                      .standby = standby(request, launch)};
  if (options.standby != nullptr) {
    options.node.standby = network::host_and_port(options.standby->address, options.standby->socket.port());
  }
  rendezvous_ = std::make_unique<StoreRendezvous>(options);
}

}  // namespace narrowcast::launcher
