#include "trainer/launcher/rendezvous/next_host.h"

#include <c10/util/Exception.h>

#include <optional>
#include <string>
#include <utility>

#include "trainer/base/network/addresses.h"
#include "trainer/base/network/tcp_store.h"

namespace narrowcast::launcher {
namespace {

constexpr std::chrono::milliseconds kToConnect{1000};

// Returns null if that launcher has ended, or serves no store within `patience`.
StorePtr reach_standby(const std::string& standby, std::chrono::milliseconds patience) {
  const std::optional<network::HostAndPort> place = network::parse_host_and_port(standby);
  std::chrono::milliseconds left = kToConnect;
  if (!place || !place->port || !try_to_reach(place->host, *place->port, left).empty()) {
    return nullptr;
  }
  try {
    return network::reach_tcp_store(place->host, *place->port, patience);
  } catch (const c10::DistError&) {
    return nullptr;
  }
}

}  // namespace

NextHost find_next_host(Succession succession, const Standby* standby, std::chrono::milliseconds patience) {
  for (const Member& candidate : succession.decision.members) {
    if (candidate.ticket == succession.ticket) {
      break;
    }
    if (!may_come(succession, candidate.ticket)) {
      continue;
    }
    if (StorePtr store = reach_standby(candidate.standby, patience)) {
      return {.ticket = candidate.ticket, .store = std::move(store), .succession = std::move(succession)};
    }
    succession.lost.emplace(candidate.ticket, "it does not answer");
  }
  TORCH_CHECK_WITH(DistNetworkError, standby != nullptr, "no member of the round answers");
  auto hosted = std::make_shared<HostedStore>(standby->address, standby->socket);
  succession.store = network::host_and_port(standby->address, standby->socket.port());
  return {.ticket = succession.ticket,
          .store = hosted->store(),
          .hosted = std::move(hosted),
          .succession = std::move(succession)};
}

}  // namespace narrowcast::launcher
