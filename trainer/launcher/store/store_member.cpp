#include "trainer/launcher/store/store_member.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <optional>
#include <utility>

#include <narrowcast/errors.h>
#include "ops/common/text.h"
#include "trainer/base/process/failpoint.h"
#include "trainer/launcher/store/store_protocol.h"

namespace narrowcast::launcher {
namespace {

// A launcher without an answer for this time draws another ticket: an attacker may have replayed an old hello with its
// ticket.
constexpr std::chrono::seconds kPatienceWithATicket{10};

}  // namespace

int64_t stored_number(const std::string& value) {
  int64_t parsed = 0;
  NARROWCAST_CHECK_INPUT(absl::SimpleAtoi(value, &parsed),
                         "the launchers' store does not hold a number: ", in_quotes(value));
  return parsed;
}

void reserve_tickets(c10d::Store& store, int64_t tickets) {
  const std::string counter = launcher_key("tickets");
  if (const int64_t drawn = store.add(counter, 0); drawn < tickets) {
    store.add(counter, tickets - drawn);
  }
}

bool StoreMember::has_host() {
  return entries_.has_secret() ? entries_.read(launcher_key("decision")).has_value()
                               : entries_.get(launcher_key("decision")).has_value();
}

bool StoreMember::awaits_first_round() {
  if (const bool is_served = has_host(); !is_served || entries_.has_secret()) {
    return is_served;
  }
  const Decision now = decision();
  return now.phase == Decision::Phase::kForming && now.round == 0;
}

std::string StoreMember::backend() {
  if (entries_.has_secret() || !has_host()) {
    return "";
  }
  const std::optional<std::string> host = entries_.get(node_key(decision().host, "description"));
  return host ? parse_node(*host).settings.backend : "";
}

// In no session: whoever writes it does not know that of this store.
std::string StoreMember::moved_to() {
  const std::string moved = launcher_key("moved/" + entries_.job());
  return (entries_.has_secret() ? entries_.get_in("", moved) : entries_.get(moved)).value_or("");
}

void StoreMember::announce_move(const std::string& store) {
  if (moved_to() != store) {
    entries_.set_in("", launcher_key("moved/" + entries_.job()), store);
  }
}

// Requests the session. Returns whether the session is known: the host has answered then.
bool StoreMember::knows_session() {
  if (!entries_.has_secret() || !entries_.session().empty()) {
    return true;
  }
  if (hello_.empty()) {
    hello_ = program::random_nonce();
    said_hello_ = Clock::now();
    entries_.set_in("", own_key("hello"), hello_);
  } else {
    entries_.set_again(own_key("hello"));
  }
  if (const std::optional<std::string> session = entries_.get_in(hello_, own_key("welcome"))) {
    const size_t space = std::min(session->rfind(' '), session->size());
    entries_.begin_session(session->substr(0, space));
    entries_.begin_at(launcher_key("steps"), stored_number(session->substr(space)));
  } else if (Clock::now() - said_hello_ > kPatienceWithATicket) {
    ticket_ = 0;
    hello_.clear();
  }
  return !entries_.session().empty();
}

void StoreMember::draw_ticket() {
  if (ticket_ == 0) {
    ticket_ = entries_.store().add(launcher_key("tickets"), 1);
    NARROWCAST_CHECK_INPUT(0 < ticket_ && ticket_ <= kMostLaunchers, "the launchers' store counts ", ticket_,
                           " launchers: another process writes to it");
    pass(Failpoint::kTicketDrawn);
  }
}

bool StoreMember::join(const NodeDescription& node) {
  draw_ticket();
  if (!is_let_in() || is_over()) {
    return false;
  }
  introduce(node);
  return true;
}

bool StoreMember::is_over() {
  const bool is_readable = !entries_.has_secret() || !entries_.session().empty();
  const auto now = is_readable ? entries_.get(launcher_key("decision"), kMostBytesOfADecision) : std::nullopt;
  const Decision decision = now ? parse_decision(*now) : Decision();
  return decision.phase == Decision::Phase::kOver && !decision.members.empty();
}

// With a secret, not before a valid decision has been read; later reads return that one.
bool StoreMember::is_let_in() {
  return knows_session() &&
         (!entries_.has_secret() || entries_.get(launcher_key("decision"), kMostBytesOfADecision).has_value());
}

void StoreMember::join_as_host(const NodeDescription& node) {
  ticket_ = 1;
  entries_.store().set(launcher_key("tickets"), "1");
  pass(Failpoint::kTicketDrawn);
  introduce(node);
}

bool StoreMember::join_again(const NodeDescription& node, const Succession& succession) {
  ticket_ = draws_again_ ? ticket_ : succession.ticket;
  if (!has_host()) {
    return false;
  }
  if (draws_again_) {
    draw_ticket();
  } else {
    reserve_tickets(entries_.store(), ticket_);
  }
  const bool waits_for_a_place = !has_member(succession.decision, succession.ticket);
  if (!is_let_in()) {
    draws_again_ = draws_again_ || (waits_for_a_place && ticket_ == 0);
    return false;
  }
  const Decision now = decision();
  if (now.run_id != succession.decision.run_id) {
    return false;
  }
  if (waits_for_a_place && !draws_again_ && std::ranges::find(now.spares, ticket_) == now.spares.end()) {
    draws_again_ = true;
    ticket_ = 0;
    return false;
  }
  if (!has_decided(now, succession) || waits_for_a_place || has_member(now, ticket_)) {
    introduce(node);
  }
  return true;
}

void StoreMember::join_again_as_host(const NodeDescription& node, int64_t ticket) {
  ticket_ = ticket;
  introduce(node);
}

bool StoreMember::learn(const Decision& decision) {
  const bool runs = decision.phase == Decision::Phase::kRunning;
  const Change change = runs ? Change{.round = decision.round, .changes = decision.changes} : known_;
  return std::exchange(known_, change) != change;
}

void StoreMember::introduce(const NodeDescription& node) {
  is_introduced_ = true;
  beat();
  pass(Failpoint::kFirstBeatGiven);
  entries_.set(own_key("report"), "");
  entries_.set(own_key("left"), "0");
  entries_.set(own_key("description"), to_text(node));
  is_described_ = true;
  pass(Failpoint::kNodeDescribed);
}

std::string StoreMember::own_key(const std::string& name) const { return node_key(ticket_, name); }

void StoreMember::beat() {
  entries_.set(own_key("beat"), absl::StrCat(++beats_, " ", known_.round, " ", known_.changes));
  if (entries_.has_secret() && is_described_) {
    for (const char* const name : {"report", "left", "description"}) {
      entries_.set_again(own_key(name));
    }
  }
}

void StoreMember::report(const RoundReport& report) {
  entries_.set(own_key("report"), to_text(report));
  pass(Failpoint::kReportWritten);
}

void StoreMember::leave() {
  entries_.set(own_key("left"), "1");
  pass(Failpoint::kLeaveWritten);
}

Decision StoreMember::decision() {
  const std::optional<std::string> decision = entries_.get(launcher_key("decision"), kMostBytesOfADecision);
  NARROWCAST_CHECK_INPUT(decision.has_value(), "the launchers' store does not hold the decision");
  return parse_decision(*decision);
}

// With a secret, reads from another host's store would return the last entries of this one. Only a valid heartbeat or a
// new copy proves that it serves.
bool StoreMember::is_served_by(const Decision& last, const HostSign& sign) {
  if (!has_host()) {
    return false;
  }
  const std::string steps = launcher_key("steps");
  const int64_t known = entries_.newest(steps);
  const int64_t now = host_sign().steps;
  const bool is_proven = !entries_.has_secret() || now > known || entries_.get_in(entries_.session(), steps);
  return is_proven && decision().run_id == last.run_id && now >= sign.steps;
}

HostSign StoreMember::host_sign() {
  const std::string sign = entries_.get(launcher_key("steps")).value_or("0 0");
  const size_t space = std::min(sign.find(' '), sign.size());
  const int64_t proven = entries_.newest(launcher_key("steps"));
  return {.steps = entries_.has_secret() ? proven : stored_number(sign.substr(0, space)),
          .pause = std::chrono::milliseconds(stored_number(sign.substr(space))),
          .spoiled = entries_.spoiled(launcher_key("steps"))};
}

}  // namespace narrowcast::launcher
