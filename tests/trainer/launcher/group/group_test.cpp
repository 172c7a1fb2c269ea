#include "trainer/launcher/group/group.h"

#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <string>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"

namespace narrowcast::launcher {
namespace {

NodeDescription node(const std::string& host, int64_t node_rank) {
  NodeDescription description;
  description.host = host;
  description.pid = 7;
  description.node_rank = node_rank;
  description.settings = {.backend = "static", .min_nodes = 2, .max_nodes = 2, .max_restarts = 1, .rdzv_id = "job"};
  return description;
}

TEST(Difference, IsNoneBetweenLaunchersThatAgree) {
  NodeDescription other = node("b", 1);
  other.nproc = 8;  // may differ
  other.role = "reader";
  EXPECT_EQ(difference(node("a", 0), other), "");
}

TEST(Difference, NamesFlagAndBothValues) {
  NodeDescription other = node("b", 1);
  other.settings.max_nodes = other.settings.min_nodes = 3;
  EXPECT_EQ(difference(node("a", 0), other), "--nnodes is 2 on node 0, a (pid 7), but 3 on node 1, b (pid 7)");
  other = node("b", 1);
  other.settings.max_restarts = 2;
  EXPECT_EQ(difference(node("a", 0), other), "--max_restarts is 1 on node 0, a (pid 7), but 2 on node 1, b (pid 7)");
  other = node("b", 1);
  other.settings.rdzv_id = "";
  EXPECT_EQ(difference(node("a", 0), other),
            "--rdzv_id is job on node 0, a (pid 7), but not given on node 1, b (pid 7)");
  other = node("b", 1);
  other.settings.in_place = true;
  EXPECT_EQ(difference(node("a", 0), other),
            "--recovery is restart on node 0, a (pid 7), but in_place on node 1, b (pid 7)");
}

TEST(Difference, CallsElasticNodesByHostAndProcess) {
  NodeDescription one = node("a", 0);
  NodeDescription other = node("b", 0);
  one.settings.backend = "c10d";
  one.settings.min_nodes = 1;
  EXPECT_EQ(difference(one, other), "--rdzv_backend is c10d on a (pid 7), but static on node 0, b (pid 7)");
  other.settings.backend = "c10d";
  EXPECT_EQ(difference(one, other), "--nnodes is 1:2 on a (pid 7), but 2 on b (pid 7)");
}

TEST(GroupEnd, KnowsTheLaunchersExitCode) {
  EXPECT_EQ(GroupEnd{}.exit_code(), 0);
  FailureRecord failure;
  failure.ending = {.exit_code = 7};
  EXPECT_EQ((GroupEnd{.cause = GroupEnd::Cause::kFailed, .failure = failure}.exit_code()), 7);
  failure.ending = {.signal = SIGSEGV};
  EXPECT_EQ((GroupEnd{.cause = GroupEnd::Cause::kFailed, .failure = failure}.exit_code()), 128 + SIGSEGV);
  EXPECT_EQ((GroupEnd{.cause = GroupEnd::Cause::kInterrupted, .signal = SIGTERM}.exit_code()), 128 + SIGTERM);
  EXPECT_EQ((GroupEnd{.cause = GroupEnd::Cause::kAborted, .text = "why", .code = 3}.exit_code()), 3);
}

FailureRecord record() {
  return {.rank = 5,
          .pid = 4321,
          .node = "node 1 (b)",
          .ending = {.exit_code = 0, .signal = 11},
          .time_ms = 1767323045678,
          .after = std::chrono::milliseconds(12345),
          .message = "disk full",
          .log_file = "logs/5/stderr.log",
          .last_lines = {"one", "two \"quoted\""}};
}

TEST(GroupJson, KeepsANode) {
  const NodeDescription node{
      .host = "b",
      .pid = 9,
      .nproc = 4,
      .node_rank = 1,
      .role = "reader",
      .known = {.change = {.round = 2, .changes = 5}, .losses = 3, .members = {4, 1}, .met = {4}, .starts = 7},
      .settings = {
          .backend = "c10d", .min_nodes = 1, .max_nodes = 3, .max_restarts = 2, .rdzv_id = "job", .in_place = true}};
  const NodeDescription read = parse_node(to_text(node));
  EXPECT_EQ(read.host, "b");
  EXPECT_EQ(read.nproc, 4);
  EXPECT_EQ(read.role, "reader");
  EXPECT_EQ(read.settings, node.settings);
  EXPECT_EQ(read.known, node.known);
}

TEST(GroupJson, KeepsAReport) {
  const RoundReport report{
      .round = 3, .report = {.end = NodeReport::End::kFailed, .failure = record(), .stopped_ranks = 2, .killed = true}};
  const RoundReport read = parse_report(to_text(report));
  EXPECT_EQ(read.round, 3);
  EXPECT_EQ(read.report.end, NodeReport::End::kFailed);
  EXPECT_TRUE(read.report.killed);
  const FailureRecord& failure = read.report.failure.value();
  EXPECT_EQ(failure.ending.signal, 11);
  EXPECT_EQ(failure.time_ms, 1767323045678);
  EXPECT_EQ(failure.after, std::chrono::milliseconds(12345));
  EXPECT_EQ(failure.last_lines, record().last_lines);
  EXPECT_EQ(failure.log_file, "logs/5/stderr.log");
}

// Values that only a foreign program could write. They are rejected by the parser.
TEST(GroupJson, RefusesWhatNoLauncherWrites) {
  const auto decision_with = [](const char* key, const nlohmann::json& value) {
    nlohmann::json text = nlohmann::json::parse(to_text(Decision{}));
    text[key] = value;
    return text.dump();
  };
  const auto error_of = [](const std::string& text) {
    return testing::error_message<CorruptInputError>([&] { parse_decision(text); });
  };
  const std::string kBegin = "the launchers' store does not hold the decision: ";
  EXPECT_EQ(error_of(decision_with("phase", 4)), kBegin + "phase is 4, not in 0..3");
  EXPECT_EQ(error_of(decision_with("phase", -1)), kBegin + "phase is -1, not in 0..3");
  EXPECT_EQ(error_of(decision_with("phase", 3)), kBegin + "end is missing");
  EXPECT_EQ(error_of(decision_with("phase", 1)), kBegin + "members is 0, not in 1..65536");
  EXPECT_EQ(error_of(decision_with("round", -1)), kBegin + "round is -1, not in 0..9223372036854775807");
  nlohmann::json lacking = nlohmann::json::parse(to_text(Decision{}));
  lacking.erase("round");
  EXPECT_EQ(error_of(lacking.dump()), kBegin + "'round' is missing");
  EXPECT_EQ(error_of(decision_with("spares", {2, 0})), kBegin + "ticket is 0, not in 1..65536");
  EXPECT_EQ(error_of(decision_with("members", 7)), kBegin + "a value must be array, but is number");
  const nlohmann::json member = {{"ticket", 1}, {"name", "n"},   {"nproc", 1'000'000'000},
                                 {"role", ""},  {"standby", ""}, {"is_new", false}};
  EXPECT_EQ(error_of(decision_with("members", nlohmann::json::array({member}))),
            kBegin + "nproc is 1000000000, not in 1..65536");
  nlohmann::json failed = nlohmann::json::parse(
      to_text(Decision{.end = GroupEnd{.cause = GroupEnd::Cause::kFailed, .failure = record()}}))["end"];
  failed["failure"] = nullptr;
  EXPECT_EQ(error_of(decision_with("end", failed)), kBegin + "failure is missing");
  failed["cause"] = 17;
  EXPECT_EQ(error_of(decision_with("end", failed)), kBegin + "cause is 17, not in 0..4");
  EXPECT_EQ(testing::error_message<CorruptInputError>(
                [] { parse_report(to_text(RoundReport{.report = {.end = NodeReport::End::kFailed}})); }),
            "the launchers' store does not hold a report: failure is missing");
  EXPECT_EQ(testing::error_message<CorruptInputError>([] { parse_node(to_text(NodeDescription{.nproc = 0})); }),
            "the launchers' store does not hold a node: nproc is 0, not in 1..65536");
  EXPECT_EQ(
      testing::error_message<CorruptInputError>([] { parse_node(to_text(NodeDescription{.known = {.met = {0}}})); }),
      "the launchers' store does not hold a node: ticket is 0, not in 1..65536");
}

TEST(GroupJson, KeepsADecision) {
  Decision decision;
  decision.phase = Decision::Phase::kRunning;
  decision.round = 2;
  decision.run_id = "job";
  decision.members = {{.ticket = 4, .name = "node 0 (a)", .nproc = 8, .role = "r", .standby = "b:1"}};
  decision.changes_in_place = true;
  decision.host = 4;
  decision.store = "c:2";
  decision.end = GroupEnd{.cause = GroupEnd::Cause::kFailed, .failure = record(), .stopped_ranks = 7};
  decision.evicted[9] = {.cause = GroupEnd::Cause::kAborted, .text = "late", .code = 2};
  decision.places = {"a:1", "[::1]:2"};
  decision.spares = {6, 11};
  const Decision read = parse_decision(to_text(decision));
  EXPECT_EQ(read.places, decision.places);
  EXPECT_EQ(read.spares, decision.spares);
  EXPECT_EQ(read.phase, Decision::Phase::kRunning);
  EXPECT_EQ(read.members.at(0).ticket, 4);
  EXPECT_EQ(read.members.at(0).nproc, 8);
  EXPECT_EQ(read.members.at(0).standby, "b:1");
  EXPECT_TRUE(read.changes_in_place);
  EXPECT_EQ(read.host, 4);
  EXPECT_EQ(read.store, "c:2");
  EXPECT_EQ(read.end->failure->rank, 5);
  EXPECT_EQ(read.end->stopped_ranks, 7);
  EXPECT_EQ(read.evicted.at(9).text, "late");
  EXPECT_FALSE(parse_decision(to_text(Decision{})).end);
}

TEST(GroupJson, KeepsHowAReportAndAnEndCameAbout) {
  const NodeReport report{
      .end = NodeReport::End::kInterrupted, .signal = 15, .text = "why", .stopped_ranks = 3, .left_behind = true};
  const NodeReport read = parse_report(to_text(RoundReport{.round = 0, .report = report})).report;
  EXPECT_FALSE(read.failure);
  EXPECT_EQ(read.signal, 15);
  EXPECT_EQ(read.text, "why");
  EXPECT_EQ(read.stopped_ranks, 3);
  EXPECT_FALSE(read.killed);
  EXPECT_TRUE(read.left_behind);
  Decision decision;
  decision.end = GroupEnd{
      .cause = GroupEnd::Cause::kAborted, .signal = 2, .text = "over", .code = 3, .killed = true, .left_behind = true};
  const GroupEnd end = parse_decision(to_text(decision)).end.value();
  EXPECT_EQ(end.cause, GroupEnd::Cause::kAborted);
  EXPECT_EQ(end.signal, 2);
  EXPECT_EQ(end.text, "over");
  EXPECT_EQ(end.code, 3);
  EXPECT_TRUE(end.killed);
  EXPECT_TRUE(end.left_behind);
}

TEST(GroupJson, KeepsWhatARecoveryInPlaceAdds) {
  NodeReport report{.end = NodeReport::End::kFailed, .failure = record(), .before = record(), .used_up = true};
  report.before->rank = 6;
  const NodeReport read = parse_report(to_text(RoundReport{.round = 0, .report = report})).report;
  EXPECT_EQ(read.failure->rank, 5);
  EXPECT_EQ(read.before->rank, 6);
  EXPECT_TRUE(read.used_up);
  EXPECT_EQ(end_of_report(read).before->rank, 6);
  report.before->rank = -1;
  EXPECT_THROW(parse_report(to_text(RoundReport{.round = 0, .report = report})), CorruptInputError);
}

TEST(GroupJson, TakesBytesThatAreNoText) {
  RoundReport report{.round = 0, .report = {.end = NodeReport::End::kFailed, .failure = record()}};
  report.report.failure->last_lines = {"bad \xff byte"};
  EXPECT_EQ(parse_report(to_text(report)).report.failure->last_lines.at(0), "bad \xEF\xBF\xBD byte");
}

TEST(GroupJson, RefusesWhatIsDeep) {
  const std::string deep = std::string(60'000, '[') + std::string(60'000, ']');
  const std::string text = R"({"phase": 0, "round": 0, "run_id": "", "members": )" + deep + "}";
  EXPECT_EQ(testing::error_message<CorruptInputError>([&] { parse_decision(text); }),
            "the launchers' store does not hold the decision: is JSON nested more than 64 deep");
}

// The largest report of a worker: endless texts of bytes that JSON writes with six. c10d's store accepts 8 MiB, which
// is far more than the report and the host's decision.
TEST(GroupJson, ABoundedReportHasALargestSize) {
  constexpr size_t kLargestReport = size_t{1} << 20;
  std::string endless;
  endless.resize(size_t{1} << 20, '\x01');
  NodeReport report{.end = NodeReport::End::kFailed, .failure = record(), .text = endless};
  FailureRecord& failure = *report.failure;
  failure.message = failure.log_file = endless;
  failure.last_lines.assign(100, endless);
  report.before = failure;
  const RoundReport sent{.round = INT64_MAX, .report = bounded(report)};
  EXPECT_LE(to_text(sent).size(), kLargestReport);
  EXPECT_EQ(parse_report(to_text(sent)).report.failure->last_lines.size(), 10U);
  EXPECT_EQ(parse_report(to_text(sent)).report.before->last_lines.size(), 10U);
  Decision decision;
  decision.end = end_of_report(sent.report);
  EXPECT_LE(to_text(decision).size(), kLargestReport);
}

TEST(GroupJson, RefusesWhatIsNone) {
  for (const char* const text : {"", "{", "[]", "{}", "7", R"({"phase": "x"})"}) {
    EXPECT_THROW(parse_decision(text), CorruptInputError) << text;
    EXPECT_THROW(parse_node(text), CorruptInputError) << text;
    EXPECT_THROW(parse_report(text), CorruptInputError) << text;
  }
}

}  // namespace
}  // namespace narrowcast::launcher
