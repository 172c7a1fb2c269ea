#include "trainer/launcher/store/worker_entries.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include <narrowcast/errors.h>
#include "trainer/base/network/tcp_store.h"

namespace narrowcast::launcher {
namespace {

std::vector<uint8_t> stored(std::string_view text) { return {text.begin(), text.end()}; }

std::string key_of(const std::string& run_id, const std::string& name) {
  return rendezvous::job_prefix(run_id) + "/" + name;
}

std::string silent_key(const std::string& run_id, const RankOfNode& rank) {
  return key_of(run_id, rendezvous::silent_key(rank.node, rank.rank_on_node));
}

std::string ready_key(const std::string& run_id, const RankOfNode& rank) {
  return key_of(run_id, rendezvous::ready_key(rank.node, rank.rank_on_node));
}

void forget(c10d::Store& store, const std::string& run_id, const RankOfNode& rank) {
  store.deleteKey(silent_key(run_id, rank));
  store.deleteKey(ready_key(run_id, rank));
  store.deleteKey(key_of(run_id, rendezvous::signs_key(rank.node, rank.rank_on_node)));
}

std::optional<std::string> value_of(c10d::Store& store, const std::string& run_id, const char* name) {
  return network::value_of(store, key_of(run_id, name));
}

int64_t add_starts(c10d::Store& store, const std::string& run_id, int64_t more) {
  const int64_t starts = store.add(key_of(run_id, rendezvous::kStarts), more);
  NARROWCAST_CHECK_INPUT(starts >= more, "the job's store: ", rendezvous::kStarts, " is ", starts);
  return starts;
}

bool has_key(c10d::Store& store, const std::string& run_id, const std::string& name) {
  return store.check({key_of(run_id, name)});
}

// None if that node stays the same.
rendezvous::Places read_places(c10d::Store& store, const std::string& run_id, int64_t node) {
  const auto text = node > 0 ? value_of(store, run_id, rendezvous::kPlaces) : std::nullopt;
  return text ? rendezvous::parse_places(*text) : rendezvous::Places();
}

// Whether the ranks of that node have met the others, or are about to start together with them.
bool have_met(c10d::Store& store, const std::string& run_id, int64_t node, const rendezvous::Places& places) {
  const bool starts = std::ranges::find(places.starting, node, &rendezvous::NodeRanks::node) != places.starting.end();
  return node == 0 || (!starts && (value_of(store, run_id, rendezvous::kRegroups) != rendezvous::kWhenReady ||
                                   has_key(store, run_id, rendezvous::met_key(node))));
}

// Whether rank 0 has begun to wait for the ranks of all these nodes.
bool are_waited_for(c10d::Store& store, const std::string& run_id, int64_t node, const rendezvous::Places& places) {
  const std::string epoch = rendezvous::epoch_of(add_starts(store, run_id, 0), places.changes);
  return places.first_rank(node) && has_key(store, run_id, rendezvous::attempt_key(epoch));
}

}  // namespace

void announce_ended_rank(c10d::Store& store, const std::string& run_id, const RankOfNode& rank) {
  store.set(key_of(run_id, rendezvous::kEndedRank), stored(to_text(rank)));
}

void announce_ended_newcomer(c10d::Store& store, const std::string& run_id, const RankOfNode& rank) {
  if (has_key(store, run_id, rendezvous::met_key(rank.node))) {
    announce_ended_rank(store, run_id, rank);
  }
}

bool has_ended_rank(c10d::Store& store, const std::string& run_id) {
  return has_key(store, run_id, rendezvous::kEndedRank);
}

void set_starts(c10d::Store& store, const std::string& run_id, int64_t starts) {
  store.set(key_of(run_id, rendezvous::kStarts), stored(std::to_string(starts)));
}

void announce_places(c10d::Store& store, const std::string& run_id, const rendezvous::Places& places) {
  store.set(key_of(run_id, rendezvous::kPlaces), stored(rendezvous::to_text(places)));
}

void announce_node_silence(c10d::Store& store, const std::string& run_id, std::chrono::milliseconds silence) {
  store.set(key_of(run_id, rendezvous::kNodeSilence), stored(std::to_string(silence.count())));
}

bool can_regroup(c10d::Store& store, const std::string& run_id) {
  return has_key(store, run_id, rendezvous::kRegroups);
}

bool keeps_newcomers_out(c10d::Store& store, const std::string& run_id) {
  return has_key(store, run_id, rendezvous::kKeepsNewcomersOut);
}

int64_t divided_by_ranks(c10d::Store& store, const std::string& run_id) {
  return parse_starts(value_of(store, run_id, rendezvous::kRanksDivide).value_or("")).value_or(0);
}

void announce_loss(c10d::Store& store, const std::string& run_id) { add_starts(store, run_id, 1); }

rendezvous::Progress progress_of(c10d::Store& store, const std::string& run_id, const rendezvous::NodeRanks& node) {
  const auto regroups = value_of(store, run_id, rendezvous::kRegroups);
  const bool tell_nothing = regroups && regroups != rendezvous::kWhenReady;
  if (tell_nothing || has_key(store, run_id, rendezvous::met_key(node.node))) {
    return rendezvous::Progress::kMet;
  }
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < node.ranks; ++rank) {
    keys.push_back(ready_key(run_id, {.node = node.node, .rank_on_node = rank}));
  }
  return regroups && store.check(keys) ? rendezvous::Progress::kReady : rendezvous::Progress::kStart;
}

void forget_ranks(c10d::Store& store, const std::string& run_id, const rendezvous::NodeRanks& node) {
  for (int64_t rank = 0; rank < node.ranks; ++rank) {
    forget(store, run_id, {.node = node.node, .rank_on_node = rank});
  }
  store.deleteKey(key_of(run_id, rendezvous::met_key(node.node)));
}

int64_t announce_start(c10d::Store& store, const std::string& run_id, const RankOfNode& rank) {
  const rendezvous::Places places = read_places(store, run_id, rank.node);
  const bool counts = have_met(store, run_id, rank.node, places) || are_waited_for(store, run_id, rank.node, places);
  const int64_t starts = add_starts(store, run_id, counts ? 1 : 0);
  forget(store, run_id, rank);
  return starts;
}

SilentRanks read_silent_ranks(c10d::Store& store, const std::string& run_id, const std::set<RankOfNode>& ranks) {
  SilentRanks silent;
  for (const RankOfNode& rank : ranks) {
    if (const auto starts = parse_starts(network::value_of(store, silent_key(run_id, rank)).value_or(""))) {
      silent[rank] = *starts;
    }
  }
  return silent;
}

std::optional<int64_t> parse_starts(std::string_view text) {
  int64_t starts = -1;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), starts);
  const bool is_number = parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
  return is_number && starts >= 0 ? std::optional(starts) : std::nullopt;
}

}  // namespace narrowcast::launcher
