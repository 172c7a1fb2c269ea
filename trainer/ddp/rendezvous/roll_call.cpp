#include "trainer/ddp/rendezvous/roll_call.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <iomanip>
#include <iterator>
#include <optional>
#include <random>
#include <string_view>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "ops/common/text.h"
#include "trainer/base/network/tcp_store.h"

namespace narrowcast::rendezvous {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr milliseconds kLookAgain{500};         // for a newer attempt, and for ranks that ended
constexpr milliseconds kBeforeNextAttempt{20};  // of rank 0

std::string drawn_name() {
  std::random_device device;  // Not a seeded generator: restarts have equal seeds.
  return c10::str(std::hex, std::setfill('0'), std::setw(8), device(), std::setw(8), device());
}

std::string presence_key(const std::string& attempt, int64_t rank) { return c10::str(attempt, "/here/", rank); }
std::string complete_key(const std::string& attempt) { return c10::str(attempt, "/complete"); }

// Whether all of `keys` exist before `limit` has passed. A lost connection is an error of another class.
bool arrive(const StorePtr& store, const std::vector<std::string>& keys, milliseconds limit) {
  try {
    store->wait(keys, limit);
    return true;
  } catch (const c10::DistStoreError&) {
    return store->check(keys);
  }
}

// Throws if a launcher has seen that a rank that is waited for ended with success. Only ranks of this world count,
// which may be smaller than the launcher's.
void check_none_ended(const StorePtr& store, const RollCall& call) {
  const std::optional<RankOfNode> ended = parse_rank(network::value_of(*store, kEndedRank).value_or(""));
  const std::optional<int64_t> rank = ended ? call.number(*ended) : std::nullopt;
  TORCH_CHECK_WITH(DistStoreError, rank.value_or(call.world_size) >= call.world_size, "missing rank ", *rank,
                   ": it has ended with exit code 0 (was it given --help, --version or --dry_run?)");
}

// An entry that this rank has written for the others.
struct OwnEntry {
  std::string key;
  std::string value;
};

// Throws if somebody has overwritten the entry: then no rank would meet this one.
void check_intact(const StorePtr& store, const RollCall& call, const OwnEntry& own) {
  const bool is_intact = store->check({own.key}) && store->get_to_str(own.key) == own.value;
  TORCH_CHECK_WITH(DistStoreError, is_intact, "another process has overwritten the entry of rank ", call.rank,
                   " in the store: it has the same rank, or does not belong to this job");
}

// Whether all of `keys` exist before the deadline. Throws c10::DistStoreError if a rank ended instead, or if this
// rank's own entry has changed.
bool arrive_in_time(const StorePtr& store, const std::vector<std::string>& keys, const RollCall& call,
                    const std::optional<OwnEntry>& own = std::nullopt) {
  while (!arrive(store, keys, std::min(kLookAgain, left_until(call.deadline)))) {
    check_none_ended(store, call);
    if (own) {
      check_intact(store, call, *own);
    }
    if (Clock::now() >= call.deadline) {
      return false;
    }
  }
  return true;
}

std::vector<int64_t> missing_ranks(const StorePtr& store, const std::string& attempt, int64_t world_size) {
  std::vector<int64_t> missing;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    if (!store->check({presence_key(attempt, rank)})) {
      missing.push_back(rank);
    }
  }
  return missing;
}

[[noreturn]] void throw_missing(const RollCall& call, const std::vector<int64_t>& ranks) {
  call.on_missing(ranks);
  TORCH_CHECK_WITH(DistStoreError, false, "timed out: ", describe_ranks(ranks), " did not join");
}

// The role of rank 0. Returns the attempt's name.
std::string lead(const StorePtr& store, const RollCall& call) {
  std::string attempt = drawn_name();
  store->set(presence_key(attempt, 0), attempt);
  store->set(attempt_key(call.epoch), attempt);
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < call.world_size; ++rank) {
    keys.push_back(presence_key(attempt, rank));
  }
  if (!arrive_in_time(store, keys, call, OwnEntry{.key = attempt_key(call.epoch), .value = attempt})) {
    throw_missing(call, missing_ranks(store, attempt, call.world_size));
  }
  std::vector<std::string> numbers;
  std::transform(keys.begin(), keys.end(), std::back_inserter(numbers),
                 [&](const std::string& key) { return store->get_to_str(key); });
  store->set(complete_key(attempt), c10::Join(",", numbers));
  return attempt;
}

// The role of all other ranks.
class Follower {
 public:
  Follower(const StorePtr& store, const RollCall& call) : store_(store), call_(call) {}

  std::string follow() {
    while (!is_complete()) {
      check_none_ended(store_, call_);
      if (Clock::now() >= call_.deadline) {
        throw_missing(call_, absentees());
      }
      if (has_ended_) {
        call_.check();
        std::this_thread::sleep_for(kBeforeNextAttempt);
      }
    }
    return attempt_;
  }

 private:
  // Waits for a limited time for the attempt that includes this rank.
  bool is_complete() {
    const std::string key = attempt_key(call_.epoch);
    if (!arrive_in_time(store_, {key}, call_)) {
      return false;
    }
    const std::string newest = store_->get_to_str(key);
    if (newest != attempt_) {
      attempt_ = newest;
      store_->set(presence_key(attempt_, call_.rank), number_);
    }
    has_ended_ = arrive(store_, {complete_key(attempt_)}, std::min(kLookAgain, left_until(call_.deadline)));
    check_intact(store_, call_, {.key = presence_key(attempt_, call_.rank), .value = number_});
    return has_ended_ && counts_this_rank(store_->get_to_str(complete_key(attempt_)));
  }

  // If no other rank is missing, rank 0 did not continue.
  std::vector<int64_t> absentees() const {
    const bool rank_zero_came = !attempt_.empty() && !has_ended_;
    const auto missing = rank_zero_came ? missing_ranks(store_, attempt_, call_.world_size) : std::vector<int64_t>{};
    return missing.empty() ? std::vector<int64_t>{0} : missing;
  }

  bool counts_this_rank(const std::string& complete) const {
    const std::vector<std::string_view> numbers = c10::split(complete, ',');
    return call_.rank < static_cast<int64_t>(numbers.size()) && numbers[call_.rank] == number_;
  }

  const StorePtr& store_;
  const RollCall& call_;
  const std::string number_ = drawn_name();
  std::string attempt_;     // the attempt that this rank has joined
  bool has_ended_ = false;  // the attempt is complete, perhaps since before this process began
};

}  // namespace

StorePtr call_roll(const StorePtr& store, const RollCall& call) {
  const std::string attempt = call.rank == 0 ? lead(store, call) : Follower(store, call).follow();
  return c10::make_intrusive<c10d::PrefixStore>(attempt, store);
}

}  // namespace narrowcast::rendezvous
