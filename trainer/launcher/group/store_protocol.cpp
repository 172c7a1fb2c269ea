#include "trainer/launcher/group/store_protocol.h"

#include <absl/strings/numbers.h>

#include <algorithm>

#include <narrowcast/errors.h>
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

}  // namespace

bool StoreMember::has_host() const { return store_->check({key("decision")}); }

void StoreMember::join(const NodeDescription& node) {
  ticket_ = store_->add(key("tickets"), 1);
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
  for (const NodeView& node : nodes_) {
    for (const char* const name : {"beat", "report", "left"}) {
      keys.push_back(node_key(node.ticket, name));
    }
  }
  const std::vector<std::vector<uint8_t>> values = store_->multiGet(keys);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const std::string report = text(values[3 * i + 1]);
    nodes_[i].beats = number(text(values[3 * i]));
    nodes_[i].report = report.empty() ? std::optional<RoundReport>() : parse_report(report);
    nodes_[i].left = text(values[3 * i + 2]) == "1";
  }
  return nodes_;
}

// Launchers that died between drawing a ticket and introducing themselves are passed over.
void StoreHost::look_for_newcomers() {
  const int64_t tickets = store_->add(key("tickets"), 0);
  for (int64_t ticket = 1; ticket <= tickets; ++ticket) {
    const bool known =
        std::any_of(nodes_.begin(), nodes_.end(), [ticket](const NodeView& node) { return node.ticket == ticket; });
    const std::string description = node_key(ticket, "description");
    if (!known && store_->check({description})) {
      nodes_.push_back({.ticket = ticket, .node = parse_node(text(store_->get(description)))});
    }
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
