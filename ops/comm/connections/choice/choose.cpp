#include "ops/comm/connections/choice/choose.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "ops/comm/connections/choice/trial.h"
#include "ops/comm/connections/meeting/meet_together.h"
#include "ops/comm/groups/agree.h"
#include "ops/comm/groups/group.h"
#include "ops/comm/link/link.h"
#include "ops/common/backend_timeout.h"
#include "ops/common/open_files.h"
#include "ops/common/per_group.h"

namespace narrowcast::connections {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using node::NodeLayout;

constexpr const char* kChoosing = "choosing connections";
constexpr double kMargin = 1.25;
constexpr double kLeastShareMeasured = 1.0 / 3;

// A round trip of 16 bytes is measured once, and more often if it is so short that a late thread counts.
constexpr double kSurelyLongSeconds = 20e-3;
constexpr int64_t kMorePings = 3;

// The congestion control of a trial, which every Linux has. Others, such as BBR, pace the first packets, which
// then come at the rate that they guess. The queueing discipline fq paces those of reno as well, but at twice a window
// per round trip, and each connection by itself: 64 of them still exceed most links.
constexpr const char* kSendsWindowsAtOnce = "reno";

constexpr int64_t kTrialConnections = 64;

// Files that a program opens besides: data, checkpoints, logs.
constexpr int64_t kFilesOfProgram = 64;

// By layout and greatest number of peers of a rank.
using Choices = KeptByKey<std::pair<NodeLayout, int64_t>, Choice>;

// Groups with one backend share its connections.
std::shared_ptr<Choices> choices_of(const Group& group) {
  static PerOwner<c10d::Backend, Choices> choices;
  return choices.of(group->getBackend(c10::DeviceType::CPU));
}

// The connections with each of `peers` ranks that this rank may open, at most `most`.
int64_t possible_connections(int64_t peers, int64_t most) {
  if (peers == 0) return most;
  const int64_t wanted = most * peers + kOtherFiles + kFilesOfProgram;
  const int64_t left = network::open_files_left(wanted) - kOtherFiles - kFilesOfProgram;
  return std::clamp<int64_t>(left / peers, 1, most);
}

// A collective: possible_connections on all ranks.
int64_t agreed_connections(const Group& group, int64_t peers, int64_t most) {
  const auto possible = static_cast<double>(possible_connections(peers, most));
  return std::llround(-collectives::greatest_of_ranks(group, kChoosing, {-possible})[0]);
}

// Of all ranks.
struct Limits {
  int64_t possible = 0;  // Connections with each peer that each rank may have.
  int64_t peers = 0;     // The greatest number of peers.
};

// A collective.
Limits agree_on_limits(const Group& group, const Use& use) {
  const int64_t possible = std::max(use.open_now, possible_connections(use.peers, use.most));
  const auto all = collectives::agree(group, {.call = use.call,
                                              .entries = {{"connections", "auto"}},
                                              .numbers = {possible, use.peers},
                                              .refusal = use.refusal});
  Limits limits{.possible = use.most};
  for (const collectives::Announcement& each : all) {
    limits.possible = std::min(limits.possible, each.numbers.at(0));
    limits.peers = std::max(limits.peers, each.numbers.at(1));
  }
  return limits;
}

// Throws on all ranks if one refuses.
Listener agree_to_listen(const Group& group, const Invited& invited) {
  std::optional<Listener> listener;
  collectives::Announcement own{.call = kChoosing};
  own.refusal = collectives::refusal_of(
      [&] { listener.emplace(listen_for_peers(*group->getBackend(c10::DeviceType::CPU), invited)); });
  collectives::agree(group, own);
  return std::move(*listener);
}

// An upper bound, in seconds: the first message of Gloo also waits for the receiver's announcement.
double most_round_trip(const Group& group, const std::optional<collectives::LinkPeers>& peers) {
  const double once = 2 * collectives::measure_hop(group, peers, 1);
  return once >= kSurelyLongSeconds ? once : std::min(once, 2 * collectives::measure_hop(group, peers, kMorePings));
}

std::string decimals(const char* format, double value) {
  std::array<char, 50> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

std::string gigabits(double bytes_per_second) { return decimals("%.2f Gbit/s", 8e-9 * bytes_per_second); }

std::string short_text(double seconds) { return c10::str("round trip ", std::llround(1e6 * seconds), " us"); }

constexpr const char* kTooFewFiles = "RLIMIT_NOFILE allows no more";

// For any number of files. Empty if there are too few files to measure the link.
std::optional<Choice> choose(const Group& group, const NodeLayout& layout, const Use& use, const Limits& limits) {
  const auto peers = collectives::peers_between_nodes(layout, group->getRank());
  const double seconds = most_round_trip(group, peers);
  if (seconds < use.least_round_trip) return Choice{1, short_text(seconds)};
  if (limits.possible < 2) return std::nullopt;
  const LongLink link = measure_long_link(group, layout, seconds);
  if (link.round_trip_seconds < use.least_round_trip) return Choice{1, short_text(link.round_trip_seconds)};
  return Choice{connections_for(link, limits.peers, use.most), text_of(link)};
}

Choice within(const Choice& wanted, int64_t possible) {
  if (wanted.connections <= possible) return wanted;
  return {possible, c10::str(wanted.reason, "; ", kTooFewFiles)};
}

}  // namespace

double chosen_rate(const LongLink& link) {
  if (link.bytes_per_second == 0) return kUsualBytesPerSecond;
  return std::max(link.bytes_per_second, std::min(kUsualBytesPerSecond, link.bytes_per_second / kLeastShareMeasured));
}

std::string text_of(const LongLink& link) {
  const double chosen = chosen_rate(link);
  std::string rate = gigabits(link.bytes_per_second);
  if (link.bytes_per_second == 0) {
    rate = "rate not measured, taken as " + gigabits(chosen);
  } else if (chosen != link.bytes_per_second) {
    rate += " measured, taken as " + gigabits(chosen);
  }
  return c10::str("round trip ", decimals("%.1f ms", 1e3 * link.round_trip_seconds), ", ", rate, ", ",
                  decimals("%.1f MB in one", 1e-6 * link.bytes_under_way));
}

int64_t connections_for(const LongLink& link, int64_t peers, int64_t most) {
  const double under_way = kMargin * chosen_rate(link) * link.round_trip_seconds;
  TORCH_INTERNAL_ASSERT(peers >= 1 && link.bytes_under_way > 0);
  const double count = std::ceil(under_way / (static_cast<double>(peers) * link.bytes_under_way));
  return static_cast<int64_t>(std::clamp(count, 2.0, static_cast<double>(most)));
}

LongLink measure_long_link(const Group& group, const NodeLayout& layout, double most_round_trip) {
  const auto peers = collectives::peers_between_nodes(layout, group->getRank());
  const std::set<int64_t> both = peers ? std::set<int64_t>{peers->from, peers->to} : std::set<int64_t>{};
  const Invited invited{.peers = {both.begin(), both.end()},
                        .connections = agreed_connections(group, std::ssize(both), kTrialConnections),
                        .sockets = {.congestion_control = kSendsWindowsAtOnce, .keeps_times = true}};
  const Listener listener = agree_to_listen(group, invited);
  // As long on all ranks. If one ended earlier, its peer would receive nothing for the rest of the time.
  const TrialTimes times = times_of_trial(most_round_trip, timeout_of(*group->getBackend(c10::DeviceType::CPU)));
  constexpr double kNone = std::numeric_limits<double>::infinity();
  double rate = kNone;
  double round_trip = 0;
  meet_together(group, kChoosing, listener, invited, [&](const SocketsByPeer& sockets) {
    if (!peers) return;
    const auto& from = sockets.at(peers->from);
    round_trip = least_round_trip(from);
    const Trial trial = send_and_receive(sockets.at(peers->to), from, times);
    collectives::count_measuring_bytes(group, trial.bytes_sent);
    if (const double measured = rate_of_trains(trial.arrivals, round_trip); measured > 0) rate = measured;
  });
  const std::vector<double> agreed =
      collectives::greatest_of_ranks(group, kChoosing, {round_trip, -rate, -most_bytes_under_way()});
  return {.round_trip_seconds = agreed[0],
          .bytes_per_second = -agreed[1] == kNone ? 0 : -agreed[1],
          .bytes_under_way = -agreed[2]};
}

Choice choose_connections(const Group& group, const NodeLayout& layout, const Use& use) {
  if (group->getSize() == 1) return {1, "one rank"};
  const Limits limits = agree_on_limits(group, use);
  if (layout.nodes() == 1) return {1, "one node"};
  const auto choices = choices_of(group);
  const std::pair key(layout, limits.peers);
  auto wanted = choices->find(key);
  if (wanted == nullptr) {
    const std::optional<Choice> chosen = choose(group, layout, use, limits);
    if (!chosen) return {1, kTooFewFiles};
    wanted = std::make_shared<const Choice>(*chosen);
    choices->keep(key, wanted);
  }
  return within(*wanted, limits.possible);
}

}  // namespace narrowcast::connections
