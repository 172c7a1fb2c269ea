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

std::string silent_key(const std::string& run_id, const NumberedRank& rank) {
  return key_of(run_id, rendezvous::silent_key(rank.changes, rank.rank));
}

int64_t add_start(c10d::Store& store, const std::string& run_id) {
  const int64_t starts = store.add(key_of(run_id, rendezvous::kStarts), 1);
  NARROWCAST_CHECK_INPUT(starts > 0, "the job's store: ", rendezvous::kStarts, " is ", starts);
  return starts;
}

}  // namespace

void announce_ended_rank(c10d::Store& store, const std::string& run_id, int64_t rank) {
  store.set(key_of(run_id, rendezvous::kEndedRank), stored(std::to_string(rank)));
}

bool has_ended_rank(c10d::Store& store, const std::string& run_id) {
  return store.check({key_of(run_id, rendezvous::kEndedRank)});
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

void announce_loss(c10d::Store& store, const std::string& run_id) { add_start(store, run_id); }

int64_t announce_start(c10d::Store& store, const std::string& run_id, const NumberedRank& rank) {
  const int64_t starts = add_start(store, run_id);
  store.deleteKey(silent_key(run_id, rank));
  store.deleteKey(key_of(run_id, rendezvous::signs_key(rank.node, rank.rank_on_node)));
  return starts;
}

// A get would wait for a key that does not exist. A compareSet with a value that no key has returns the stored value,
// or the given value if the key does not exist.
SilentRanks read_silent_ranks(c10d::Store& store, const std::string& run_id, const std::set<NumberedRank>& ranks) {
  const std::vector<uint8_t> probe = stored("none");
  SilentRanks silent;
  for (const NumberedRank& rank : ranks) {
    const std::vector<uint8_t> found = store.compareSet(silent_key(run_id, rank), probe, probe);
    if (const auto starts = parse_starts({reinterpret_cast<const char*>(found.data()), found.size()})) {
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
