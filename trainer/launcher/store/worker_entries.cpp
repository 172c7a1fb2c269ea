#include "trainer/launcher/store/worker_entries.h"

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

constexpr const char* kNoValue = "none";

// The entry's value, or kNoValue. A get would wait for a key that does not exist. A compareSet with a value that no key
// has returns the stored value, or the given value if the key does not exist.
std::string value_of(c10d::Store& store, const std::string& key) {
  const std::vector<uint8_t> probe = stored(kNoValue);
  const std::vector<uint8_t> found = store.compareSet(key, probe, probe);
  return {found.begin(), found.end()};
}

int64_t add_starts(c10d::Store& store, const std::string& run_id, int64_t more) {
  const int64_t starts = store.add(key_of(run_id, rendezvous::kStarts), more);
  NARROWCAST_CHECK_INPUT(starts >= more, "the job's store: ", rendezvous::kStarts, " is ", starts);
  return starts;
}

// Whether other ranks may wait for those of that node: they have met, or rank 0 waits for the nodes of now.
bool takes_part(c10d::Store& store, const std::string& run_id, int64_t node) {
  const bool is_newcomer = node != 0 &&
                           value_of(store, key_of(run_id, rendezvous::kRegroups)) == rendezvous::kWhenReady &&
                           !store.check({key_of(run_id, rendezvous::met_key(node))});
  if (!is_newcomer) {
    return true;
  }
  const int64_t starts = add_starts(store, run_id, 0);
  const int64_t changes = rendezvous::parse_places(value_of(store, key_of(run_id, rendezvous::kPlaces))).changes;
  return store.check({key_of(run_id, rendezvous::attempt_key(rendezvous::epoch_of(starts, changes)))});
}

}  // namespace

void announce_ended_rank(c10d::Store& store, const std::string& run_id, int64_t rank) {
  store.set(key_of(run_id, rendezvous::kEndedRank), stored(std::to_string(rank)));
}

std::optional<int64_t> ended_rank(c10d::Store& store, const std::string& run_id) {
  return parse_starts(value_of(store, key_of(run_id, rendezvous::kEndedRank)));
}

void forget_ended_rank(c10d::Store& store, const std::string& run_id) {
  store.deleteKey(key_of(run_id, rendezvous::kEndedRank));
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
  return store.check({key_of(run_id, rendezvous::kRegroups)});
}

bool keeps_newcomers_out(c10d::Store& store, const std::string& run_id) {
  return store.check({key_of(run_id, rendezvous::kKeepsNewcomersOut)});
}

void announce_loss(c10d::Store& store, const std::string& run_id) { add_starts(store, run_id, 1); }

bool is_ready(c10d::Store& store, const std::string& run_id, const rendezvous::NodeRanks& node) {
  const std::string regroups = value_of(store, key_of(run_id, rendezvous::kRegroups));
  if (regroups != rendezvous::kWhenReady) {
    return regroups != kNoValue;
  }
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < node.ranks; ++rank) {
    keys.push_back(ready_key(run_id, {.node = node.node, .rank_on_node = rank}));
  }
  return store.check(keys);
}

void forget_ranks(c10d::Store& store, const std::string& run_id, const rendezvous::NodeRanks& node) {
  for (int64_t rank = 0; rank < node.ranks; ++rank) {
    forget(store, run_id, {.node = node.node, .rank_on_node = rank});
  }
  store.deleteKey(key_of(run_id, rendezvous::met_key(node.node)));
}

int64_t announce_start(c10d::Store& store, const std::string& run_id, const RankOfNode& rank) {
  const int64_t starts = add_starts(store, run_id, takes_part(store, run_id, rank.node) ? 1 : 0);
  forget(store, run_id, rank);
  return starts;
}

SilentRanks read_silent_ranks(c10d::Store& store, const std::string& run_id, const std::set<RankOfNode>& ranks) {
  SilentRanks silent;
  for (const RankOfNode& rank : ranks) {
    if (const auto starts = parse_starts(value_of(store, silent_key(run_id, rank)))) {
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
