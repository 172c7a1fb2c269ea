#include "ops/comm/connections/meeting/meet_together.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <system_error>
#include <type_traits>

#include "ops/comm/connections/meeting/gloo_address.h"
#include "ops/comm/connections/meeting/reports.h"
#include "ops/comm/groups/group.h"
#include "ops/common/backend_timeout.h"

namespace narrowcast::connections {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

// All ranks connect at the same time. A firewall that drops packets is noticed after this time.
constexpr std::chrono::milliseconds kPatience{30000};

constexpr const char* kNobody = "127.0.0.1";

std::vector<Card> exchange_cards(const Group& group, const std::string& call, const Card& own) {
  static_assert(std::is_trivially_copyable_v<Card>);
  at::Tensor row = at::zeros({sizeof(Card)}, at::kByte);
  std::memcpy(row.mutable_data_ptr(), &own, sizeof(Card));
  const at::Tensor rows = collectives::all_gather_rows(group, call, row, at::kCPU);
  std::vector<Card> cards(static_cast<size_t>(group->getSize()));
  std::memcpy(cards.data(), rows.const_data_ptr(), rows.nbytes());
  return cards;
}

}  // namespace

Listener listen_for_peers(c10d::Backend& backend, const Invited& invited) {
  const std::string ip = gloo_address(backend);
  try {
    return Listener(invited.peers.empty() ? kNobody : ip, invited.sockets);
  } catch (const std::system_error& error) {
    TORCH_CHECK_VALUE(false, "connections: ", error.what());
  }
}

std::chrono::milliseconds patience_within(std::chrono::milliseconds timeout) {
  return std::min(kPatience, timeout / 2);
}

void meet_together(const Group& group, const std::string& call, const Listener& listener, const Invited& invited,
                   const std::function<void(SocketsByPeer)>& use) {
  const std::vector<Card> cards = exchange_cards(group, call, listener.card());
  const auto timeout = timeout_of(*group->getBackend(c10::DeviceType::CPU));
  const MeetingOptions options{.rank = group->getRank(),
                               .peers = invited.peers,
                               .connections = invited.connections,
                               .patience = patience_within(timeout),
                               .sockets = invited.sockets};
  act_together(
      group, call, [&] { use(meet(listener, cards, options)); }, [&] { listener.stop_meeting(); });
}

}  // namespace narrowcast::connections
