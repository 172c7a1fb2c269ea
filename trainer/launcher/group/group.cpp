#include "trainer/launcher/group/group.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include <narrowcast/errors.h>
#include "ops/common/error_message.h"
#include "ops/common/text.h"
#include "trainer/base/files/json.h"
#include "trainer/base/program/failure.h"
#include "trainer/launcher/posix/last_lines.h"

// An empty optional is null.
template <class T>
struct nlohmann::adl_serializer<std::optional<T>> {
  static void to_json(json& j, const std::optional<T>& value) { j = value ? json(*value) : json(nullptr); }
  static void from_json(const json& j, std::optional<T>& value) {
    value = j.is_null() ? std::nullopt : std::optional<T>(j.get<T>());
  }
};

namespace narrowcast::launcher {

using nlohmann::json;

namespace {

struct Setting {
  std::string flag;
  std::string value;
};

std::array<Setting, 5> settings_of(const NodeDescription& node) {
  const GroupSettings& settings = node.settings;
  const std::string least = std::to_string(settings.min_nodes);
  const std::string most = std::to_string(settings.max_nodes);
  return {{{"--rdzv_backend", settings.backend},
           {"--nnodes", least == most ? least : least + ":" + most},
           {"--max_restarts", std::to_string(settings.max_restarts)},
           {"--recovery", settings.in_place ? "in_place" : "restart"},
           {"--rdzv_id", settings.rdzv_id.empty() ? "not given" : settings.rdzv_id}}};
}

// Users know launchers of fixed nodes by their --node_rank.
std::string place_of(const NodeDescription& node) {
  return node.settings.backend == kStaticBackend ? "node " + std::to_string(node.node_rank) + ", " + name_of(node)
                                                 : name_of(node);
}

template <class T>
std::string dump(const T& value) {
  return json(value).dump(-1, ' ', false, json::error_handler_t::replace);
}

void check_range(const char* what, int64_t value, int64_t least, int64_t most) {
  NARROWCAST_CHECK_INPUT(least <= value && value <= most, what, " is ", value, ", not in ", least, "..", most);
}

template <class Enum>
void check_enumerator(const char* what, Enum value, Enum last) {
  check_range(what, static_cast<int64_t>(value), 0, static_cast<int64_t>(last));
}

constexpr int kMostSignal = 128;
constexpr int kMostExitCode = 255;

void check(const FailureRecord& failure) {
  check_range("rank", failure.rank, 0, kMostLaunchers * kMostWorkersOfANode);
  check_range("exit_code", failure.ending.exit_code, 0, kMostExitCode);
  check_range("signal", failure.ending.signal, 0, kMostSignal);
}

bool has_failed(const NodeReport& report) { return report.end == NodeReport::End::kFailed; }
bool has_failed(const GroupEnd& end) { return end.cause == GroupEnd::Cause::kFailed; }

// Checks the members that a NodeReport and a GroupEnd share.
template <class End>
void check_end(const End& end) {
  check_range("signal", end.signal, 0, kMostSignal);
  check_range("stopped_ranks", end.stopped_ranks, 0, kMostLaunchers * kMostWorkersOfANode);
  NARROWCAST_CHECK_INPUT(end.failure.has_value() || !has_failed(end), "failure is missing");
  for (const auto& failure : {end.failure, end.before}) {
    if (failure) {
      check(*failure);
    }
  }
}

void check(const NodeReport& report) {
  check_enumerator("end", report.end, NodeReport::End::kRefused);
  check_end(report);
}

void check(const GroupEnd& end) {
  check_enumerator("cause", end.cause, GroupEnd::Cause::kAborted);
  check_range("code", end.code, 0, kMostExitCode);
  check_end(end);
}

void check(const GroupSettings& settings) {
  NARROWCAST_CHECK_INPUT(settings.backend == kStaticBackend || settings.backend == kElasticBackend, "backend is ",
                         in_quotes(settings.backend));
  check_range("min_nodes", settings.min_nodes, 1, kMostLaunchers);
  check_range("max_nodes", settings.max_nodes, settings.min_nodes, kMostLaunchers);
  check_range("bytes of rdzv_id", std::ssize(settings.rdzv_id), 0, kLongestName);
}

void check_tickets(const std::vector<int64_t>& tickets) {
  for (const int64_t ticket : tickets) {
    check_range("ticket", ticket, 1, kMostLaunchers);
  }
}

// The next host counts on from these numbers.
void check(const LastKnown& known) {
  constexpr int64_t kMost = int64_t{1} << 60;
  check_range("changes", known.change.changes, 0, kMost);
  check_range("losses", known.losses, 0, kMost);
  check_range("starts", known.starts, 0, kMost);
  check_range("members", std::ssize(known.members), 0, kMostLaunchers);
  check_range("met", std::ssize(known.met), 0, kMostLaunchers);
  check_tickets(known.members);
  check_tickets(known.met);
}

void check(const NodeDescription& node) {
  check_range("bytes of host and role", std::ssize(node.host) + std::ssize(node.role), 0, kLongestMessage);
  check_range("nproc", node.nproc, 1, kMostWorkersOfANode);
  check_range("node_rank", node.node_rank, 0, kMostLaunchers - 1);
  check(node.known);
  check(node.settings);
}

void check(const RoundReport& report) {
  check_range("round", report.round, -1, std::numeric_limits<int64_t>::max());
  check(report.report);
}

void check(const Decision& decision) {
  using Phase = Decision::Phase;
  check_enumerator("phase", decision.phase, Phase::kOver);
  check_range("round", decision.round, 0, std::numeric_limits<int64_t>::max());
  check_range("changes", decision.changes, 0, std::numeric_limits<int64_t>::max());
  check_range("losses", decision.losses, 0, std::numeric_limits<int64_t>::max());
  const bool has_round = decision.phase == Phase::kRunning || decision.phase == Phase::kStopping;
  check_range("members", std::ssize(decision.members), has_round ? 1 : 0, kMostLaunchers);
  check_range("places", std::ssize(decision.places), 0, kMostPlaces);
  check_range("spares", std::ssize(decision.spares), 0, kMostSpares);
  check_tickets(decision.spares);
  for (const Member& member : decision.members) {
    check_range("ticket", member.ticket, 1, kMostLaunchers);
    check_range("nproc", member.nproc, 1, kMostWorkersOfANode);
  }
  NARROWCAST_CHECK_INPUT(decision.end.has_value() || decision.phase != Phase::kOver, "end is missing");
  if (decision.end) {
    check(*decision.end);
  }
  for (const auto& [ticket, end] : decision.evicted) {
    check_range("ticket", ticket, 1, kMostLaunchers);
    check(end);
  }
}

void bound(FailureRecord& failure) {
  failure.message = cut_text(failure.message);
  failure.log_file = cut_text(failure.log_file);
  std::vector<std::string>& lines = failure.last_lines;
  lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(std::min(lines.size(), kMostLines)));
  std::transform(lines.begin(), lines.end(), lines.begin(), cut_text);
}

template <class T>
T parse(const std::string& what, const std::string& text) {
  const std::string name = "the launchers' store does not hold " + what;
  try {
    const T value = files::parse_json(text, name).get<T>();
    const std::string problem = failure_of([&] { check(value); });
    NARROWCAST_CHECK_INPUT(problem.empty(), name, ": ", problem);
    return value;
  } catch (const json::exception& error) {
    NARROWCAST_CHECK_INPUT(false, name, ": ", files::problem_with(error));
  }
}

}  // namespace

NodeReport bounded(NodeReport report) {
  report.text = cut_text(report.text);
  for (std::optional<FailureRecord>* const failure : {&report.failure, &report.before}) {
    if (*failure) {
      bound(**failure);
    }
  }
  return report;
}

int GroupEnd::exit_code() const {
  switch (cause) {
    case Cause::kFailed:
      return root().ending.code();
    case Cause::kInterrupted:
      return 128 + signal;
    case Cause::kMembership:
    case Cause::kAborted:
      return code;
    case Cause::kSucceeded:
      break;
  }
  return program::kSuccess;
}

GroupEnd end_of_report(const NodeReport& report) {
  GroupEnd end{.failure = report.failure,
               .before = report.before,
               .signal = report.signal,
               .text = report.text,
               .stopped_ranks = report.stopped_ranks,
               .killed = report.killed,
               .left_behind = report.left_behind};
  switch (report.end) {
    case NodeReport::End::kSucceeded:
    case NodeReport::End::kStopped:
      end.cause = GroupEnd::Cause::kSucceeded;
      break;
    case NodeReport::End::kFailed:
      end.cause = GroupEnd::Cause::kFailed;
      break;
    case NodeReport::End::kInterrupted:
      end.cause = GroupEnd::Cause::kInterrupted;
      break;
    case NodeReport::End::kRefused:
      end.cause = GroupEnd::Cause::kAborted;
      end.code = program::kWrongUse;
      break;
  }
  return end;
}

std::string name_of(const NodeDescription& node) { return node.host + " (pid " + std::to_string(node.pid) + ")"; }

std::string difference(const NodeDescription& one, const NodeDescription& other) {
  const auto ours = settings_of(one);
  const auto theirs = settings_of(other);
  for (size_t i = 0; i < ours.size(); ++i) {
    if (ours[i].value != theirs[i].value) {
      return ours[i].flag + " is " + ours[i].value + " on " + place_of(one) + ", but " + theirs[i].value + " on " +
             place_of(other);
    }
  }
  return "";
}

// nlohmann::json finds these functions through the namespace of the types.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Ending, exit_code, signal)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GroupSettings, backend, min_nodes, max_nodes, max_restarts, rdzv_id, in_place)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Change, round, changes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LastKnown, change, losses, members, met, starts)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NodeDescription, host, pid, nproc, node_rank, role, standby, known, settings)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Member, ticket, name, nproc, role, standby, is_new)

void to_json(json& j, const FailureRecord& record) {
  j = {{"rank", record.rank},
       {"pid", record.pid},
       {"node", record.node},
       {"ending", record.ending},
       {"time_ms", record.time_ms},
       {"after_ms", record.after.count()},
       {"message", record.message},
       {"log_file", record.log_file},
       {"last_lines", record.last_lines},
       {"is_final", record.is_final},
       {"is_misfit", record.is_misfit}};
}

void from_json(const json& j, FailureRecord& record) {
  j.at("rank").get_to(record.rank);
  j.at("pid").get_to(record.pid);
  j.at("node").get_to(record.node);
  j.at("ending").get_to(record.ending);
  j.at("time_ms").get_to(record.time_ms);
  record.after = std::chrono::milliseconds(j.at("after_ms").get<int64_t>());
  j.at("message").get_to(record.message);
  j.at("log_file").get_to(record.log_file);
  j.at("last_lines").get_to(record.last_lines);
  j.at("is_final").get_to(record.is_final);
  j.at("is_misfit").get_to(record.is_misfit);
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NodeReport, end, failure, before, signal, text, stopped_ranks, killed, left_behind,
                                   used_up)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RoundReport, round, report)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GroupEnd, cause, failure, before, signal, text, code, stopped_ranks, killed,
                                   left_behind)

void to_json(json& j, const Decision& decision) {
  j = {{"phase", decision.phase},     {"round", decision.round},   {"run_id", decision.run_id},
       {"members", decision.members}, {"note", decision.note},     {"end", decision.end},
       {"changes", decision.changes}, {"losses", decision.losses}, {"change", decision.change},
       {"host", decision.host},       {"store", decision.store},   {"changes_in_place", decision.changes_in_place},
       {"places", decision.places},   {"spares", decision.spares}, {"turned_away", json::array()}};
  for (const auto& [ticket, end] : decision.evicted) {
    j["turned_away"].push_back({{"ticket", ticket}, {"end", end}});
  }
}

void from_json(const json& j, Decision& decision) {
  j.at("phase").get_to(decision.phase);
  j.at("round").get_to(decision.round);
  j.at("run_id").get_to(decision.run_id);
  j.at("members").get_to(decision.members);
  j.at("note").get_to(decision.note);
  j.at("end").get_to(decision.end);
  j.at("changes").get_to(decision.changes);
  j.at("losses").get_to(decision.losses);
  j.at("change").get_to(decision.change);
  j.at("host").get_to(decision.host);
  j.at("store").get_to(decision.store);
  j.at("changes_in_place").get_to(decision.changes_in_place);
  j.at("places").get_to(decision.places);
  j.at("spares").get_to(decision.spares);
  for (const json& entry : j.at("turned_away")) {
    decision.evicted[entry.at("ticket").get<int64_t>()] = entry.at("end").get<GroupEnd>();
  }
}

std::string to_text(const NodeDescription& node) { return dump(node); }
std::string to_text(const RoundReport& report) { return dump(report); }
std::string to_text(const Decision& decision) { return dump(decision); }

NodeDescription parse_node(const std::string& text) { return parse<NodeDescription>("a node", text); }
RoundReport parse_report(const std::string& text) { return parse<RoundReport>("a report", text); }
Decision parse_decision(const std::string& text) { return parse<Decision>("the decision", text); }

}  // namespace narrowcast::launcher
