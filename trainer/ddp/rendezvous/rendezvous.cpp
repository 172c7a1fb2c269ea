#include "trainer/ddp/rendezvous/rendezvous.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include <narrowcast/network_errors.h>
#include "trainer/base/network/addresses.h"
#include "trainer/base/network/answering_store.h"
#include "trainer/base/network/places.h"
#include "trainer/base/network/tcp_store.h"
#include "trainer/ddp/rendezvous/roll_call.h"

namespace narrowcast::rendezvous {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr milliseconds kPause{20};                   // between two checks
constexpr milliseconds kPatienceWithAnAnswer{1000};  // of the store, at least
constexpr milliseconds kBetweenAttempts{100};        // to reach a store that may move
constexpr milliseconds kLongestAttempt{5000};        // each of them
constexpr milliseconds kBetweenLooksForAPlace{200};

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

std::string to_text(const network::StoreAddress& address) { return network::host_and_port(address.host, address.port); }

}  // namespace

JobStore::JobStore(const WorkerEnv& env, const JobStoreOptions& options)
    : env_(env), options_(options), deadline_(Clock::now() + options.timeout) {
  if (is_alone(env)) {
    keys_ = c10::make_intrusive<c10d::HashStore>();
    return;
  }
  if (env.rank == 0 && !env.use_agent_store) {
    with_network_errors(env.rank, c10::str("serving the store at ", to_text(address())),
                        [&] { use(serve(env, options, deadline_)); });
  } else {
    while (!find_store()) {
      std::this_thread::sleep_for(kBetweenAttempts);
    }
  }
  take_place();
}

// Tries to reach the store where it is served at present. Returns false if it may move, and there is time left.
bool JobStore::find_store() {
  if (!env_.store_file.empty()) {
    const network::StoreAddress now = network::read_store_file(env_.store_file).value_or(address());
    env_.master_addr = now.host;
    env_.master_port = now.port;
  }
  try {
    with_network_errors(env_.rank, c10::str("reaching the store at ", to_text(address())), [&] {
      answering_ = reach();
      use(answering_);
    });
    return true;
  } catch (const c10::DistBackendError&) {
    if (env_.store_file.empty() || Clock::now() >= deadline_) {
      throw;
    }
    return false;
  }
}

c10::intrusive_ptr<network::AnsweringStore> JobStore::reach() const {
  const bool served_at_loopback = env_.on_one_node() && !env_.use_agent_store;
  const network::StoreAddress place = {.host = served_at_loopback ? network::kLoopback : env_.master_addr,
                                       .port = env_.master_port};
  const milliseconds left = std::max(kPatienceWithAnAnswer, left_until(deadline_));
  if (env_.store_file.empty()) {
    return c10::make_intrusive<network::AnsweringStore>(
        network::reach_tcp_store(place.host, place.port, options_.timeout), to_text(place), left);
  }
  // The threads of operations may outlive this object.
  const std::function<bool()> moved = [file = env_.store_file, place] { return network::store_has_moved(file, place); };
  const network::TcpStorePtr store =
      network::reach_tcp_store(place.host, place.port, std::min(kLongestAttempt, left), moved);
  store->setTimeout(options_.timeout);
  return c10::make_intrusive<network::AnsweringStore>(store, to_text(place), left, moved);
}

void JobStore::use(const StorePtr& everything) {
  keys_ = c10::make_intrusive<c10d::PrefixStore>(job_prefix(env_.run_id), everything);
  if (env_.recovers_in_place) {
    // In this order: the launcher writes them the other way round, so places that are too old are noticed.
    starts_ = read_starts();
    places_ = read_places();
    node_silence_ = read_node_silence();
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
  const auto store =
      with_network_errors(env_.rank, c10::str("joining the job at ", to_text(address())), [this] { return meet(); });
  store->setTimeout(options_.timeout);
  if (answering_.defined()) {
    answering_->set_patience(options_.timeout);
  }
  return store;
}

StorePtr JobStore::meet() {
  if (env_.recovers_in_place) {
    keys_->set(ready_key_of(env_.rank), std::vector<uint8_t>{'1'});
  }
  if (is_starting_) {
    wait_for_place();
  }
  // A rank that lost another one may come before its launcher has announced the loss.
  const auto check = [this] { TORCH_CHECK_WITH(DistNetworkError, is_as_found(), kRanksHaveChanged); };
  auto met = call_roll(keys_, {.rank = env_.rank,
                               .world_size = env_.world_size,
                               .epoch = env_.recovers_in_place ? epoch_of(starts_, places_.changes) : "",
                               .deadline = deadline_,
                               .check = check,
                               .on_missing = [this](const auto& ranks) { report_missing(ranks); },
                               .number = [this](const RankOfNode& rank) { return rank_of(rank); }});
  if (env_.node > 0) {
    keys_->set(met_key(env_.node), std::vector<uint8_t>{'1'});
  }
  return met;
}

// Ends with an error: this rank's place will be another one.
void JobStore::wait_for_place() {
  while (Clock::now() < deadline_) {
    TORCH_CHECK_WITH(DistNetworkError, is_as_found(), kRanksHaveChanged);
    std::this_thread::sleep_for(kBetweenLooksForAPlace);
  }
  report_unstarted();
  TORCH_CHECK_WITH(DistStoreError, false, "timed out: the job's other ranks have not taken in this rank's node");
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
  const auto begin = Clock::now();
  for (;;) {
    const std::optional<Change> seen = look();
    if (seen.value_or(Change::kNone) != Change::kNone) {
      return true;
    }
    if (Clock::now() - begin >= (seen.has_value() ? within : std::max(within, options_.timeout))) {
      return false;
    }
    std::this_thread::sleep_for(kPause);
  }
}

void JobStore::announce_regroups(Newcomers newcomers, int64_t ranks_divide) {
  if (newcomers == Newcomers::kReplaceLost) {
    keys_->set(kKeepsNewcomersOut, std::vector<uint8_t>{'1'});
  }
  if (ranks_divide > 0) {
    keys_->set(kRanksDivide, std::to_string(ranks_divide));
  }
  keys_->set(kRegroups, std::string(kWhenReady));
}

void JobStore::report_silent(int64_t rank) {
  const Entry report = report_of_silence(rank);
  keys_->set(report.key, report.value);
}

// They live, but hang, e.g. while they read data.
void JobStore::report_missing(const std::vector<int64_t>& ranks) {
  if (!env_.recovers_in_place) {
    return;
  }
  TORCH_CHECK_WITH(DistNetworkError, is_as_found(), kRanksHaveChanged);
  if (is_newcomer()) {
    return report_unstarted();
  }
  for (const int64_t rank : ranks) {
    report_silent(rank);
  }
  has_reported_ = true;
}

// Whether this rank's node is to be taken in by ranks that work.
bool JobStore::is_newcomer() const {
  return env_.node > 0 && keys_->check({kRegroups}) && !keys_->check({met_key(env_.node)});
}

void JobStore::report_unstarted() {
  waits_on_ = true;
  for (int64_t rank = 0; rank < env_.world_size; ++rank) {
    const bool is_watched_by_others = is_starting_ && place_of(rank).node != env_.node;
    if (!is_watched_by_others && !keys_->check({ready_key_of(rank)})) {
      waits_on_ = waits_on_ && !keys_->check({report_of_silence(rank).key});  // A new process has no report.
      report_silent(rank);
    }
  }
}

JobStore::Entry JobStore::report_of_silence(int64_t rank) const {
  const RankOfNode place = place_of(rank);
  return {.key = silent_key(place.node, place.rank_on_node), .value = std::to_string(starts_)};
}

std::string JobStore::signs_key_of(int64_t rank) const {
  const RankOfNode place = place_of(rank);
  return signs_key(place.node, place.rank_on_node);
}

std::string JobStore::ready_key_of(int64_t rank) const {
  const RankOfNode place = place_of(rank);
  return ready_key(place.node, place.rank_on_node);
}

RankOfNode JobStore::place_of(int64_t rank) const {
  int64_t first = 0;
  for (const NodeRanks& node : places_.nodes) {
    if (rank < first + node.ranks) {
      return {.node = node.node, .rank_on_node = rank - first};
    }
    first += node.ranks;
  }
  return {.node = 0, .rank_on_node = rank};
}

// The number of that rank among those that meet now. Nothing if it is not one of them.
std::optional<int64_t> JobStore::rank_of(const RankOfNode& place) const {
  const auto node = std::ranges::find(places_.nodes, place.node, &NodeRanks::node);
  const int64_t ranks = node != places_.nodes.end() ? node->ranks : place.node == 0 ? env_.world_size : 0;
  return place.rank_on_node < ranks ? std::optional(places_.first_rank(place.node).value_or(0) + place.rank_on_node)
                                    : std::nullopt;
}

JobStore::Change JobStore::change() const {
  if (!env_.recovers_in_place || is_alone(env_)) {
    return Change::kNone;
  }
  if (has_moved()) {
    return Change::kLoss;
  }
  try {
    return read_change();
  } catch (const c10::DistError&) {
    if (has_moved()) {
      return Change::kLoss;
    }
    throw;
  }
}

JobStore::Change JobStore::read_change() const {
  if (read_starts() != starts_) {
    return Change::kLoss;
  }
  const Places now = read_places();
  if (now.changes == places_.changes) {
    return Change::kNone;
  }
  const bool has_more = std::ranges::any_of(
      now.nodes, [this](const NodeRanks& node) { return !places_.first_rank(node.node).has_value(); });
  return has_more ? Change::kNewcomer : Change::kNumber;
}

// The change so far. Nothing if the store does not answer, and may move.
std::optional<JobStore::Change> JobStore::look() const {
  try {
    return change();
  } catch (const c10::DistError&) {
    if (env_.store_file.empty()) {
      throw;
    }
    return std::nullopt;
  }
}

bool JobStore::is_as_found() const { return change() == Change::kNone; }

network::StoreAddress JobStore::address() const { return {.host = env_.master_addr, .port = env_.master_port}; }

bool JobStore::has_moved() const {
  return !env_.store_file.empty() && network::store_has_moved(env_.store_file, address());
}

// Takes the place that the launchers give this node's ranks at present.
void JobStore::take_place() {
  if (places_.nodes.empty()) {
    return;
  }
  const auto starting = std::ranges::find(places_.starting, env_.node, &NodeRanks::node);
  is_starting_ = starting != places_.starting.end();
  if (is_starting_) {
    places_.nodes.push_back(*starting);
  }
  const std::optional<int64_t> first = places_.first_rank(env_.node);
  TORCH_CHECK_WITH(DistBackendError, first.has_value(), "rank ", env_.rank,
                   ": its node is no longer one of the job's nodes");
  env_.rank = *first + env_.rank_on_node;
  env_.world_size = places_.world_size();
}

// No nodes on a node that stays alone: no launcher changes its place.
Places JobStore::read_places() const {
  const auto text = env_.node > 0 ? network::value_of(*keys_, kPlaces) : std::nullopt;
  return text ? parse_places(*text) : Places();
}

// An entry with another content counts as the default.
milliseconds JobStore::read_node_silence() const {
  const std::string text = env_.node > 0 ? network::value_of(*keys_, kNodeSilence).value_or("") : "";
  int64_t count = 0;
  std::from_chars(text.data(), text.data() + text.size(), count);
  return count > 0 ? std::min(milliseconds(count), options_.timeout) : kDefaultNodeSilence;
}

int64_t JobStore::read_starts() const {
  const std::string text = network::value_of(*keys_, kStarts).value_or("0");
  int64_t starts = -1;
  std::from_chars(text.data(), text.data() + text.size(), starts);
  return starts;
}

}  // namespace narrowcast::rendezvous
