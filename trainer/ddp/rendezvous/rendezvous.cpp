#include "trainer/ddp/rendezvous/rendezvous.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <iomanip>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include <narrowcast/network_errors.h>
#include "ops/common/text.h"
#include "trainer/base/network/addresses.h"
#include "trainer/base/network/answering_store.h"
#include "trainer/base/network/places.h"
#include "trainer/base/network/tcp_store.h"

namespace narrowcast::rendezvous {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr milliseconds kLookAgain{500};              // for a newer attempt, and for ranks that ended
constexpr milliseconds kPause{20};                   // between two checks
constexpr milliseconds kPatienceWithAnAnswer{1000};  // of the store, at least

std::string drawn_name() {
  std::random_device device;  // Not a seeded generator: restarts have equal seeds.
  return c10::str(std::hex, std::setfill('0'), std::setw(8), device(), std::setw(8), device());
}

// The key of the name of the newest attempt.
std::string attempt_key(const std::string& epoch) { return c10::str("attempt/", epoch); }
std::string presence_key(const std::string& attempt, int64_t rank) { return c10::str(attempt, "/here/", rank); }
std::string complete_key(const std::string& attempt) { return c10::str(attempt, "/complete"); }

milliseconds left_until(Clock::time_point deadline) {
  return std::max(milliseconds(1), std::chrono::ceil<milliseconds>(deadline - Clock::now()));
}

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
void check_none_ended(const StorePtr& store, int64_t world_size) {
  if (!store->check({kEndedRank})) {
    return;
  }
  const std::string text = store->get_to_str(kEndedRank);
  int64_t rank = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), rank).ec == std::errc()) {
    TORCH_CHECK_WITH(DistStoreError, rank < 0 || rank >= world_size, "missing rank ", rank,
                     ": it has ended with exit code 0 (was it given --help, --version or --dry_run?)");
  }
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
    check_none_ended(store, call.world_size);
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

[[noreturn]] void throw_missing(const std::vector<int64_t>& ranks) {
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
    throw_missing(missing_ranks(store, attempt, call.world_size));
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
      check_none_ended(store_, call_.world_size);
      if (Clock::now() >= call_.deadline) {
        throw_missing(absentees());
      }
      if (has_ended_) {
        std::this_thread::sleep_for(kPause);
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

// Addresses of MASTER_ADDR. A name may be published some moments after its machine has started.
std::vector<std::string> addresses_of_master(const WorkerEnv& env, Clock::time_point deadline) {
  std::vector<std::string> addresses = network::addresses_of_host(env.master_addr);
  while (addresses.empty() && Clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(100));
    addresses = network::addresses_of_host(env.master_addr);
  }
  TORCH_CHECK_WITH(DistNetworkError, !addresses.empty(), "the name cannot be resolved");
  return addresses;
}

// The address at which rank 0 listens for ranks of other nodes.
std::string serving_address(const WorkerEnv& env, const JobStoreOptions& options, Clock::time_point deadline) {
  const std::vector<std::string> addresses = addresses_of_master(env, deadline);
  for (const std::string& address : addresses) {
    if (network::is_own_address(address) &&
        (!network::is_loopback_address(address) || network::names_loopback(env.master_addr))) {
      return address;
    }
  }
  TORCH_CHECK_WITH(DistNetworkError, !options.interface.empty(), "the name resolves to ", c10::Join(", ", addresses),
                   " here, where other nodes cannot reach rank 0: set MASTER_ADDR to an address of rank 0's machine, "
                   "or set the interface to listen at (--interface or GLOO_SOCKET_IFNAME)");
  return network::addresses_of_interface(options.interface)[0];
}

network::ListeningSocket listen_at(const std::string& address, int64_t port) {
  int error = 0;
  const network::AddressList found = network::find_addresses(address, error);
  TORCH_CHECK_WITH(DistNetworkError, found != nullptr, address, ": ", gai_strerror(error));
  auto socket = network::ListeningSocket::listen_at(found, port, error);
  TORCH_CHECK_WITH(DistNetworkError, socket.has_value(), "cannot listen at ", address, " port ", port, ": ",
                   error == EADDRNOTAVAIL ? "it is not an address of this machine" : std::strerror(error));
  return *std::move(socket);
}

network::TcpStorePtr serve(const WorkerEnv& env, const JobStoreOptions& options, Clock::time_point deadline) {
  const std::string address = env.on_one_node() ? network::kLoopback : serving_address(env, options, deadline);
  const network::ListeningSocket socket = listen_at(address, env.master_port);
  return network::serve_tcp_store(address, socket, options.timeout);
}

using AnsweringStorePtr = c10::intrusive_ptr<network::AnsweringStore>;

AnsweringStorePtr reach(const WorkerEnv& env, const JobStoreOptions& options, Clock::time_point deadline) {
  const bool served_at_loopback = env.on_one_node() && !env.use_agent_store;
  const std::string host = served_at_loopback ? network::kLoopback : env.master_addr;
  const network::TcpStorePtr store = network::reach_tcp_store(host, env.master_port, options.timeout);
  return c10::make_intrusive<network::AnsweringStore>(store, network::host_and_port(host, env.master_port),
                                                      std::max(kPatienceWithAnAnswer, left_until(deadline)));
}

}  // namespace

StorePtr call_roll(const StorePtr& store, const RollCall& call) {
  const std::string attempt = call.rank == 0 ? lead(store, call) : Follower(store, call).follow();
  return c10::make_intrusive<c10d::PrefixStore>(attempt, store);
}

JobStore::JobStore(const WorkerEnv& env, const JobStoreOptions& options)
    : env_(env), options_(options), deadline_(Clock::now() + options.timeout) {
  if (is_alone(env)) {
    keys_ = c10::make_intrusive<c10d::HashStore>();
    return;
  }
  const bool serves = env.rank == 0 && !env.use_agent_store;
  const std::string place = network::host_and_port(env.master_addr, env.master_port);
  const StorePtr everything = with_network_errors(
      env.rank, c10::str(serves ? "serving the store at " : "reaching the store at ", place), [&]() -> StorePtr {
        if (serves) {
          return serve(env, options, deadline_);
        }
        answering_ = reach(env, options, deadline_);
        return answering_;
      });
  keys_ = c10::make_intrusive<c10d::PrefixStore>(job_prefix(env.run_id), everything);
  if (env.recovers_in_place) {
    // In this order: the launcher writes them the other way round, so places that are too old are noticed.
    starts_ = read_starts();
    take_place();
  }
}

StorePtr JobStore::join() {
  if (is_alone(env_)) {
    return keys_;
  }
  if (env_.recovers_in_place && answering_.defined()) {
    // The store owns the function, and this object the store, which another thread may still use.
    answering_->set_interruption([this]() -> std::string { return is_as_found() ? "" : kRanksHaveChanged; });
  }
  const std::string place = network::host_and_port(env_.master_addr, env_.master_port);
  const std::string epoch = env_.recovers_in_place ? c10::str(starts_, "/", changes_) : "";
  const auto store = with_network_errors(env_.rank, c10::str("joining the job at ", place), [&] {
    return call_roll(keys_, {.rank = env_.rank, .world_size = env_.world_size, .epoch = epoch, .deadline = deadline_});
  });
  store->setTimeout(options_.timeout);
  if (answering_.defined()) {
    answering_->set_patience(options_.timeout);
  }
  return store;
}

void JobStore::end_joining() {
  if (answering_.defined()) {
    answering_->set_interruption(nullptr);
  }
}

bool JobStore::have_changed(milliseconds within) {
  if (!env_.recovers_in_place || is_alone(env_)) {
    return false;
  }
  const auto last = Clock::now() + within;
  while (is_as_found()) {
    if (Clock::now() >= last) {
      return false;
    }
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

void JobStore::announce_regroups() { keys_->set(kRegroups, std::vector<uint8_t>{'1'}); }

void JobStore::report_silent(int64_t rank) {
  const std::string starts = std::to_string(starts_);
  keys_->set(silent_key(changes_, rank), std::vector<uint8_t>(starts.begin(), starts.end()));
}

JobStore::Change JobStore::change() const {
  if (!env_.recovers_in_place || is_alone(env_)) {
    return Change::kNone;
  }
  if (read_starts() != starts_) {
    return Change::kLoss;
  }
  return read_places() == places_ ? Change::kNone : Change::kNewcomer;
}

bool JobStore::is_as_found() const { return change() == Change::kNone; }

// Takes the place that the launchers give this node's ranks at present.
void JobStore::take_place() {
  places_ = read_places();
  if (places_.empty()) {
    return;
  }
  const Places places = parse_places(places_);
  const std::optional<int64_t> first = places.first_rank(env_.node);
  TORCH_CHECK_WITH(DistBackendError, first.has_value(), "rank ", env_.rank,
                   ": its node is no longer one of the job's nodes");
  changes_ = places.changes;
  env_.rank = *first + env_.rank_on_node;
  env_.world_size = places.world_size();
}

// Empty on a node that stays alone: no launcher changes its place.
std::string JobStore::read_places() const {
  return env_.node > 0 && keys_->check({kPlaces}) ? keys_->get_to_str(kPlaces) : "";
}

int64_t JobStore::read_starts() const {
  const std::string text = keys_->check({kStarts}) ? keys_->get_to_str(kStarts) : "0";
  int64_t starts = -1;
  std::from_chars(text.data(), text.data() + text.size(), starts);
  return starts;
}

}  // namespace narrowcast::rendezvous
