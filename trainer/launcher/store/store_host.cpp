#include "trainer/launcher/store/store_host.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <array>
#include <utility>

#include <narrowcast/errors.h>
#include "ops/common/error_message.h"
#include "ops/common/text.h"
#include "trainer/base/process/failpoint.h"
#include "trainer/launcher/store/store_protocol.h"
#include "trainer/launcher/store/worker_entries.h"

namespace narrowcast::launcher {
namespace {

std::string text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

constexpr std::array kNodeKeys = {"beat", "report", "left"};

std::vector<std::string> keys_of_node(int64_t ticket) {
  std::vector<std::string> keys;
  for (const char* const name : kNodeKeys) {
    keys.push_back(node_key(ticket, name));
  }
  return keys;
}

// Ranks may report that a rank is silent for so long after its node is gone.
constexpr std::chrono::seconds kUntilLastReport{60};

rendezvous::NodeRanks ranks_of(const NodeView& node) { return {.node = node.ticket, .ranks = node.node.nproc}; }

bool has_entries(const NodeView& node) { return node.unreadable.empty() && node.absent.empty(); }

}  // namespace

StoreHost::StoreHost(StorePtr store, Coordinator coordinator, std::function<void()> before_round, const JobSeal& seal,
                     std::chrono::milliseconds pause)
    : entries_(std::move(store), seal),
      coordinator_(std::move(coordinator)),
      before_round_(std::move(before_round)),
      pause_(pause) {
  const Decision& decision = coordinator_.decision();
  for (const Member& member : decision.members) {
    tickets_ = std::max(tickets_, member.ticket);
  }
  for (const auto& [ticket, end] : decision.evicted) {
    tickets_ = std::max(tickets_, ticket);
  }
  // Launchers that find the decision draw theirs. Any up to the last spare's may have been drawn already.
  const auto& spares = decision.spares;
  reserve_tickets(entries_.store(), spares.empty() ? tickets_ : std::max(tickets_, std::ranges::max(spares)));
  give_sign();
  publish(decision);
}

void StoreHost::step(Clock::time_point now) {
  if (is_gathering(now)) {
    publish(coordinator_.decision());
    return give_sign();
  }
  now_ = now;
  const std::vector<NodeView> nodes = look();
  if (coordinator_.numbers_ranks_anew()) {
    look_at_ranks();
  }
  const Decision& decision = coordinator_.step(now, nodes);
  if (decision.phase == Decision::Phase::kRunning) {
    prepare(decision);
  }
  publish(decision);
  forget_nodes();
  give_sign();
}

// Launchers that come and go, any number of times, leave nothing.
void StoreHost::forget_nodes() {
  std::erase_if(nodes_, [this](const NodeView& node) {
    if (!coordinator_.is_done_with(node.ticket)) {
      return false;
    }
    for (const char* const name : {"beat", "report", "left", "description", "hello", "welcome"}) {
      entries_.remove(node_key(node.ticket, name));
    }
    welcomed_.erase(node.ticket);
    if (coordinator_.was_member(node.ticket)) {
      forget_ranks(entries_.store(), coordinator_.decision().run_id, ranks_of(node));
      gone_.emplace_back(now_ + kUntilLastReport, ranks_of(node));
    }
    coordinator_.forget(node.ticket);
    return true;
  });
  while (!gone_.empty() && gone_.front().first <= now_) {
    forget_ranks(entries_.store(), coordinator_.decision().run_id, gone_.front().second);
    gone_.pop_front();
  }
}

// Reads what the ranks tell the launchers.
void StoreHost::look_at_ranks() {
  const std::string run_id = coordinator_.decision().run_id;
  if (can_regroup(entries_.store(), run_id)) {
    coordinator_.let_members_change(
        keeps_newcomers_out(entries_.store(), run_id) ? Newcomers::kReplaceLost : Newcomers::kJoin,
        divided_by_ranks(entries_.store(), run_id));
  }
  if (has_ended_rank(entries_.store(), run_id)) {
    coordinator_.let_round_end();
  }
}

// Their number grows whenever other nodes meet.
rendezvous::Places StoreHost::places_of(const Decision& decision) const {
  rendezvous::Places places;
  const std::set<int64_t> left_out = coordinator_.left_out();
  for (const Member& member : decision.members) {
    std::vector<rendezvous::NodeRanks>& nodes = left_out.contains(member.ticket) ? places.starting : places.nodes;
    nodes.push_back({.node = member.ticket, .ranks = member.nproc});
  }
  const bool is_first = decision.round != prepared_.round;
  places.changes = is_first ? 0 : places_.changes + (places.nodes == places_.nodes ? 0 : 1);
  return places;
}

// Removes and writes what workers read, before they can learn of the round or of the change.
void StoreHost::prepare(const Decision& decision) {
  const bool is_new = decision.round != prepared_.round;
  const rendezvous::Places places = places_of(decision);
  if (!is_new && places == places_ && decision.losses == prepared_.losses) {
    return;
  }
  if (is_new) {
    before_round_();
  }
  if (coordinator_.numbers_ranks_anew()) {
    announce_node_silence(entries_.store(), decision.run_id, coordinator_.silence());
    announce_places(entries_.store(), decision.run_id, places);
    if (!is_new && decision.losses != prepared_.losses) {
      announce_loss(entries_.store(), decision.run_id);
    }
  }
  prepared_ = decision;
  places_ = places;
  pass(Failpoint::kRoundPrepared);
}

std::vector<NodeView> StoreHost::look() {
  look_for_newcomers();
  if (!entries_.has_secret()) {
    look_at_plain();
  }
  for (NodeView& node : nodes_) {
    if (entries_.has_secret() && has_entries(node)) {
      node.unreadable = failure_of([&] { look_at_sealed(node); });
    }
    if (coordinator_.is_newcomer(node.ticket) && node.progress != rendezvous::Progress::kMet) {
      node.progress = progress_of(entries_.store(), coordinator_.decision().run_id, ranks_of(node));
    }
  }
  return nodes_;
}

// A missing entry is written again by its launcher; a launcher that has ended runs into its heartbeat timeout.
void StoreHost::look_at_sealed(NodeView& node) {
  std::vector<std::optional<std::string>> texts;
  for (const std::string& own : keys_of_node(node.ticket)) {
    texts.push_back(entries_.get(own));
  }
  read(node, texts);
  const std::string beat = node_key(node.ticket, "beat");
  node.beats = entries_.newest(beat);  // A heartbeat that was overwritten before it was read counts too.
  node.spoiled = entries_.spoiled(beat);
}

// Reads all nodes with one request. A request for a missing key would wait for the store's timeout.
void StoreHost::look_at_plain() {
  std::vector<std::string> keys;
  std::vector<NodeView*> readable;
  for (NodeView& node : nodes_) {
    const std::vector<std::string> own = keys_of_node(node.ticket);
    if (has_entries(node)) {
      keys.insert(keys.end(), own.begin(), own.end());
      readable.push_back(&node);
    }
  }
  c10d::Store& store = entries_.store();
  if (!store.check(keys)) {
    for (NodeView* const node : readable) {
      node->unreadable = store.check(keys_of_node(node->ticket)) ? "" : "the launchers' store has lost its entries";
    }
    return;
  }
  const std::vector<std::vector<uint8_t>> values = store.multiGet(keys);
  for (size_t i = 0; i < readable.size(); ++i) {
    std::vector<std::optional<std::string>> texts;
    for (size_t name = 0; name < kNodeKeys.size(); ++name) {
      texts.emplace_back(text(values[kNodeKeys.size() * i + name]));
    }
    readable[i]->unreadable = failure_of([&] { read(*readable[i], texts); });
  }
}

// `texts` are the values of kNodeKeys. A missing value leaves its member of `node` unchanged.
void StoreHost::read(NodeView& node, const std::vector<std::optional<std::string>>& texts) {
  if (texts[0]) {
    const std::vector<std::string> numbers = absl::StrSplit(*texts[0], ' ');
    NARROWCAST_CHECK_INPUT(numbers.size() == 3,
                           "the launchers' store does not hold a heartbeat: ", in_quotes(*texts[0]));
    node.beats = stored_number(numbers[0]);
    node.known = {.round = stored_number(numbers[1]), .changes = stored_number(numbers[2])};
  }
  if (texts[1]) {
    node.report = texts[1]->empty() ? std::optional<RoundReport>() : parse_report(*texts[1]);
  }
  if (texts[2]) {
    node.left = *texts[2] == "1";
  }
}

// Returns the number of tickets drawn. Somebody may have made the counter smaller, too large, or not a number.
//   - With a secret the counter is repaired. Two launchers that then draw the same ticket differ in their hello.
//   - Without a secret, newcomers fail if the counter is too large or not a number. If it is smaller, newcomers draw
//     tickets that others have.
int64_t StoreHost::tickets_drawn() {
  const std::string counter = entries_.read(launcher_key("tickets")).value_or("0");
  int64_t tickets = 0;
  const bool is_number = absl::SimpleAtoi(counter, &tickets);
  if (is_number && tickets_ <= tickets && tickets <= kMostLaunchers) {
    return tickets;
  }
  if (!entries_.has_secret()) {
    return is_number && tickets > kMostLaunchers ? kMostLaunchers : tickets_;
  }
  entries_.store().set(launcher_key("tickets"), std::to_string(tickets_));
  return tickets_;
}

// Answers a launcher's hello with the session and the number of the host's last heartbeat. Another launcher that comes
// with the same ticket gets no answer.
void StoreHost::welcome(int64_t ticket) {
  const std::string own_key = node_key(ticket, "welcome");
  if (welcomed_.contains(ticket)) {
    return entries_.set_again(own_key);
  }
  if (const std::optional<std::string> hello = entries_.get_in("", node_key(ticket, "hello"))) {
    welcomed_[ticket] = *hello;
    entries_.set_in(*hello, own_key,
                    entries_.session() + " " + std::to_string(entries_.written(launcher_key("steps"))));
  }
}

// Returns nothing before the launcher has introduced itself.
std::optional<NodeView> StoreHost::introduced(int64_t ticket) {
  std::vector<std::string> keys = keys_of_node(ticket);
  keys.push_back(node_key(ticket, "description"));
  if (!entries_.store().check(keys)) {
    return std::nullopt;
  }
  NodeView node{.ticket = ticket};
  std::optional<std::string> description;
  node.unreadable = failure_of([&] {
    description = entries_.get(keys.back());
    if (description.has_value()) {
      node.node = parse_node(*description);
    }
  });
  return description.has_value() || !node.unreadable.empty() ? std::optional(std::move(node)) : std::nullopt;
}

// Launchers that died between drawing a ticket and introducing themselves are skipped. The limits bound the time of a
// call, even if somebody else has made the ticket counter large.
void StoreHost::look_for_newcomers() {
  constexpr size_t kMostLookedFor = 256;
  constexpr size_t kMostSealedLookedFor = 16;  // Each is fetched every time, and may be invalid.
  for (const int64_t tickets = tickets_drawn(); tickets_ < tickets; ++tickets_) {
    expected_.push_back(tickets_ + 1);
  }
  for (size_t left = std::min(expected_.size(), entries_.has_secret() ? kMostSealedLookedFor : kMostLookedFor);
       left > 0; --left) {
    const int64_t ticket = expected_.front();
    expected_.pop_front();
    if (entries_.has_secret()) {
      welcome(ticket);
    }
    std::optional<NodeView> node = has_joined(ticket) ? std::nullopt : introduced(ticket);
    if (node) {
      nodes_.push_back(std::move(*node));
    } else {
      expected_.push_back(ticket);  // It may still introduce itself, or, as an absent member, ask for the session.
    }
  }
}

void StoreHost::publish(const Decision& decision) {
  const std::string now = to_text(decision);
  if (now != published_) {
    entries_.set(launcher_key("decision"), now);
    published_ = now;
    pass(Failpoint::kDecisionPublished);
  } else if (entries_.has_secret()) {
    entries_.set_again(launcher_key("decision"));
  }
}

void StoreHost::give_sign() {
  entries_.set(launcher_key("steps"), std::to_string(++steps_) + " " + std::to_string(pause_.count()));
}

}  // namespace narrowcast::launcher
