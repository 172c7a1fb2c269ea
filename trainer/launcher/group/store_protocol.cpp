#include "trainer/launcher/group/store_protocol.h"

#include <absl/strings/numbers.h>

#include <algorithm>
#include <array>
#include <utility>

#include <narrowcast/errors.h>
#include "ops/error_message.h"
#include "trainer/base/files/text.h"
#include "trainer/launcher/group/hosted_store.h"

namespace narrowcast::launcher {
namespace {

std::string key(const std::string& name) { return kLauncherKeys + name; }
std::string node_key(int64_t ticket, const std::string& name) {
  return key("node/" + std::to_string(ticket) + "/" + name);
}

std::vector<uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

void set(const StorePtr& store, const std::string& key, const std::string& value) { store->set(key, bytes(value)); }

int64_t number(const std::string& value) {
  int64_t parsed = 0;
  NARROWCAST_CHECK_INPUT(absl::SimpleAtoi(value, &parsed),
                         "the launchers' store does not hold a number: ", in_quotes(value));
  return parsed;
}

constexpr std::array kNodeKeys = {"beat", "report", "left"};

std::vector<std::string> keys_of_node(int64_t ticket) {
  std::vector<std::string> keys;
  for (const char* const name : kNodeKeys) {
    keys.push_back(node_key(ticket, name));
  }
  return keys;
}

// `values`: those of kNodeKeys.
void read(NodeView& node, const std::vector<uint8_t>* values) {
  const std::string report = text(values[1]);
  node.beats = number(text(values[0]));
  node.report = report.empty() ? std::optional<RoundReport>() : parse_report(report);
  node.left = text(values[2]) == "1";
}

}  // namespace

bool StoreMember::has_host() const { return store_->check({key("decision")}); }

void StoreMember::join(const NodeDescription& node) {
  ticket_ = store_->add(key("tickets"), 1);
  NARROWCAST_CHECK_INPUT(0 < ticket_ && ticket_ <= kMostLaunchers, "the launchers' store says that ", ticket_,
                         " launchers have come: somebody else writes there");
  beat();
  set(store_, own_key("report"), "");
  set(store_, own_key("left"), "0");
  set(store_, own_key("description"), to_text(node));
}

std::string StoreMember::own_key(const std::string& name) const { return node_key(ticket_, name); }

void StoreMember::beat() { store_->add(own_key("beat"), 1); }

void StoreMember::report(const RoundReport& report) { set(store_, own_key("report"), to_text(report)); }

void StoreMember::leave() { set(store_, own_key("left"), "1"); }

Decision StoreMember::decision() const { return parse_decision(text(store_->get(key("decision")))); }

StoreHost::StoreHost(StorePtr store, Coordinator coordinator, std::function<void()> before_round)
    : store_(std::move(store)), coordinator_(std::move(coordinator)), before_round_(std::move(before_round)) {
  publish(coordinator_.decision());
}

void StoreHost::step(Clock::time_point now) {
  const Decision& decision = coordinator_.step(now, look());
  if (decision.phase == Decision::Phase::kRunning && decision.round != prepared_round_) {
    before_round_();
    prepared_round_ = decision.round;
  }
  publish(decision);
}

std::vector<NodeView> StoreHost::look() {
  look_for_newcomers();
  std::vector<std::string> keys;
  std::vector<NodeView*> readable;
  for (NodeView& node : nodes_) {
    if (node.unreadable.empty()) {
      const std::vector<std::string> own = keys_of_node(node.ticket);
      keys.insert(keys.end(), own.begin(), own.end());
      readable.push_back(&node);
    }
  }
  if (!store_->check(keys)) {  // To ask for what is not there would take as long as the store waits for it.
    for (NodeView* const node : readable) {
      node->unreadable = store_->check(keys_of_node(node->ticket)) ? "" : "the launchers' store has lost its entries";
    }
    return nodes_;
  }
  const std::vector<std::vector<uint8_t>> values = store_->multiGet(keys);
  for (size_t i = 0; i < readable.size(); ++i) {
    readable[i]->unreadable = failure_of([&] { read(*readable[i], &values[kNodeKeys.size() * i]); });
  }
  return nodes_;
}

// Launchers that died between drawing a ticket and introducing themselves are passed over. Whatever somebody else makes
// of the counter, a look takes no longer than for so many.
void StoreHost::look_for_newcomers() {
  constexpr size_t kMostLookedFor = 256;
  const int64_t tickets = std::min(store_->add(key("tickets"), 0), kMostLaunchers);
  for (; tickets_ < tickets; ++tickets_) {
    expected_.push_back(tickets_ + 1);
  }
  for (size_t left = std::min(expected_.size(), kMostLookedFor); left > 0; --left) {
    const int64_t ticket = expected_.front();
    expected_.pop_front();
    std::vector<std::string> keys = keys_of_node(ticket);
    keys.push_back(node_key(ticket, "description"));
    if (!store_->check(keys)) {
      expected_.push_back(ticket);
      continue;
    }
    NodeView node{.ticket = ticket};
    node.unreadable = failure_of([&] { node.node = parse_node(text(store_->get(keys.back()))); });
    nodes_.push_back(std::move(node));
  }
}

void StoreHost::publish(const Decision& decision) {
  const std::string now = to_text(decision);
  if (now != published_) {
    set(store_, key("decision"), now);
    published_ = now;
  }
}

}  // namespace narrowcast::launcher
