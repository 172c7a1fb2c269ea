#include "trainer/launcher/group/group.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include <narrowcast/errors.h>
#include "trainer/base/files/json.h"
#include "trainer/base/files/text.h"
#include "trainer/base/program/failure.h"
#include "trainer/launcher/posix/last_lines.h"

// What is missing is null.
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

std::array<Setting, 4> settings_of(const NodeDescription& node) {
  const GroupSettings& settings = node.settings;
  const std::string least = std::to_string(settings.min_nodes);
  const std::string most = std::to_string(settings.max_nodes);
  return {{{"--rdzv_backend", settings.backend},
           {"--nnodes", least == most ? least : least + ":" + most},
           {"--max_restarts", std::to_string(settings.max_restarts)},
           {"--rdzv_id", settings.rdzv_id.empty() ? "not given" : settings.rdzv_id}}};
}

// Launchers of fixed nodes are best known by their --node_rank.
std::string place_of(const NodeDescription& node) {
  return node.settings.backend == kStaticBackend ? "node " + std::to_string(node.node_rank) + ", " + name_of(node)
                                                 : name_of(node);
}

template <class T>
std::string dump(const T& value) {
  return json(value).dump(-1, ' ', false, json::error_handler_t::replace);
}

template <class T>
T parse(const std::string& what, const std::string& text) {
  const std::string name = "the launchers' store does not hold " + what;
  try {
    return files::parse_json(text, name).get<T>();
  } catch (const json::exception& error) {
    NARROWCAST_CHECK_INPUT(false, name, ": ", printable(error.what(), 300));
  }
}

}  // namespace

NodeReport bounded(NodeReport report) {
  report.text = cut_text(report.text);
  if (report.failure) {
    FailureRecord& failure = *report.failure;
    failure.message = cut_text(failure.message);
    failure.log_file = cut_text(failure.log_file);
    std::vector<std::string>& lines = failure.last_lines;
    lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(std::min(lines.size(), kMostLines)));
    std::transform(lines.begin(), lines.end(), lines.begin(), cut_text);
  }
  return report;
}

int GroupEnd::exit_code() const {
  switch (cause) {
    case Cause::kFailed:
      return failure->ending.code();
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

// Found by the library through the types' namespace.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Ending, exit_code, signal)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GroupSettings, backend, min_nodes, max_nodes, max_restarts, rdzv_id)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NodeDescription, host, pid, nproc, node_rank, role, settings)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Member, ticket, name, nproc, role)

void to_json(json& j, const FailureRecord& record) {
  j = {{"rank", record.rank},       {"pid", record.pid},           {"node", record.node},
       {"ending", record.ending},   {"time_ms", record.time_ms},   {"after_ms", record.after.count()},
       {"message", record.message}, {"log_file", record.log_file}, {"last_lines", record.last_lines}};
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
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NodeReport, end, failure, signal, text, stopped_ranks, killed, left_behind)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RoundReport, round, report)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GroupEnd, cause, failure, signal, text, code, stopped_ranks, killed, left_behind)

void to_json(json& j, const Decision& decision) {
  j = {{"phase", decision.phase},     {"round", decision.round}, {"run_id", decision.run_id},
       {"members", decision.members}, {"note", decision.note},   {"end", decision.end},
       {"turned_away", json::array()}};
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
