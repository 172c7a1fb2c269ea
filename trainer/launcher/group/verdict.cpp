#include "trainer/launcher/group/verdict.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <iomanip>
#include <sstream>

#include "ops/common/text.h"
#include "trainer/base/process/signals.h"
#include "trainer/base/program/failure.h"
#include "trainer/launcher/posix/last_lines.h"

namespace narrowcast::launcher {
namespace {

using Results = std::vector<MemberResult>;

const MemberResult* find(const Results& results, NodeReport::End end) {
  for (const MemberResult& result : results) {
    if (result.report && result.report->end == end) {
      return &result;
    }
  }
  return nullptr;
}

const MemberResult* find_lost(const Results& results) {
  for (const MemberResult& result : results) {
    if (!result.report) {
      return &result;
    }
  }
  return nullptr;
}

bool blames_a_peer(const FailureRecord& failure) { return failure.ending.exit_code == program::kPeerFailed; }

// Returns whether the rank ended because a launcher of the job was sent a signal: its exit code is that of the signal.
// All ranks of narrowcast-train, on all nodes, end in this way after one of them was signalled.
bool follows_a_signal(const Results& results, const FailureRecord& failure) {
  return std::ranges::any_of(results, [&](const MemberResult& result) {
    return result.report && result.report->signal != 0 && failure.ending.signal == 0 &&
           failure.ending.exit_code == 128 + result.report->signal;
  });
}

template <class Wanted>
std::optional<FailureRecord> first_failure(const Results& results, const Wanted& wanted) {
  std::optional<FailureRecord> first;
  for (const auto& [member, report] : results) {
    const bool counts = report && report->failure && wanted(*report->failure);
    if (counts && (!first || report->failure->time_ms < first->time_ms)) {
      first = report->failure;
      first->node = member.name;
    }
  }
  return first;
}

// Returns an end with the sums over all nodes' workers.
GroupEnd end_with(const Results& results, GroupEnd::Cause cause, const std::string& text) {
  GroupEnd end{.cause = cause, .text = text};
  for (const MemberResult& result : results) {
    if (result.report) {
      end.stopped_ranks += result.report->stopped_ranks;
      end.killed = end.killed || result.report->killed;
      end.left_behind = end.left_behind || result.report->left_behind;
    }
  }
  return end;
}

// Returns the member whose launcher received a signal that ends the job, or null.
const MemberResult* find_interrupted(const Results& results, const RoundRules& rules) {
  for (const MemberResult& result : results) {
    const bool counts = !rules.elastic || result.member.ticket == rules.host_ticket;
    if (counts && result.report && result.report->signal != 0) {
      return &result;
    }
  }
  return nullptr;
}

// Returns the end of the job if it ends regardless of its workers' results.
std::optional<GroupEnd> find_end(const Results& results, const RoundRules& rules) {
  if (const MemberResult* const refused = find(results, NodeReport::End::kRefused)) {
    GroupEnd end = end_with(results, GroupEnd::Cause::kAborted, refused->member.name + ": " + refused->report->text);
    end.code = program::kWrongUse;
    return end;
  }
  const MemberResult* const interrupted = find_interrupted(results, rules);
  if (interrupted != nullptr && interrupted->report->end == NodeReport::End::kInterrupted) {
    GroupEnd end = end_with(results, GroupEnd::Cause::kInterrupted, interrupted->member.name);
    end.signal = interrupted->report->signal;
    return end;
  }
  return std::nullopt;
}

Verdict failed(const Results& results, const FailureRecord& failure) {
  GroupEnd end = end_with(results, GroupEnd::Cause::kFailed, "");
  end.failure = failure;
  for (const auto& [member, report] : results) {
    if (report && report->failure && report->failure->rank == failure.rank) {
      end.before = report->before;
    }
    if (end.before) {
      end.before->node = failure.node;
    }
  }
  return {.kind = Verdict::Kind::kCountedRestart, .end = end};
}

Verdict changed(const Results& results, const std::string& text) {
  GroupEnd end = end_with(results, GroupEnd::Cause::kMembership, text);
  end.code = program::kPeerFailed;
  return {.kind = Verdict::Kind::kRestart, .end = end};
}

Verdict lost(const Results& results, const RoundRules& rules, const std::string& text) {
  Verdict verdict = changed(results, text);
  if (!rules.survives_losses) {
    verdict.kind = Verdict::Kind::kOver;
    verdict.end.cause = GroupEnd::Cause::kAborted;
  }
  return verdict;
}

Verdict judge_workers(const Results& results, const RoundRules& rules) {
  const auto is_a_cause = [&](const FailureRecord& failure) {
    return !blames_a_peer(failure) && !follows_a_signal(results, failure);
  };
  if (const auto failure = first_failure(results, is_a_cause)) {
    return failed(results, *failure);
  }
  if (const MemberResult* const gone = find_lost(results)) {
    return lost(results, rules, gone->member.name + " was lost: " + rules.lost_because);
  }
  if (const MemberResult* const leaver = find(results, NodeReport::End::kInterrupted)) {
    return changed(results, leaver->member.name + " left: " + signal_name(leaver->report->signal, "signal "));
  }
  if (const auto failure = first_failure(results, [](const FailureRecord&) { return true; })) {
    return failed(results, *failure);
  }
  const MemberResult* const stopped = find(results, NodeReport::End::kStopped);
  if (stopped == nullptr) {
    return {.kind = Verdict::Kind::kOver, .end = end_with(results, GroupEnd::Cause::kSucceeded, "")};
  }
  return rules.newcomer.empty() ? lost(results, rules, stopped->member.name + " stopped its workers without a request")
                                : changed(results, rules.newcomer + " joined");
}

// Seconds with one decimal.
std::string seconds_text(std::chrono::milliseconds duration) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << static_cast<double>(duration.count()) / 1000.0 << " s";
  return text.str();
}

std::string local_time(int64_t milliseconds) {
  const auto seconds = static_cast<std::time_t>(milliseconds / 1000);
  std::tm local{};
  localtime_r(&seconds, &local);
  std::ostringstream text;
  text << std::put_time(&local, "%Y-%m-%d %H:%M:%S");
  return text.str();
}

// Describes the end of the other ranks.
std::string ending_of_others(const GroupEnd& end) {
  if (end.left_behind) {
    return "; not all processes could be ended, even by SIGKILL";
  }
  if (end.stopped_ranks == 0) {
    return "";
  }
  return "; stopped " + std::to_string(end.stopped_ranks) +
         (end.stopped_ranks == 1 ? " running rank" : " running ranks") + (end.killed ? ", with SIGKILL" : "");
}

std::string headline(const FailureRecord& failure, const std::string& others) {
  return "rank " + std::to_string(failure.rank) + (failure.node.empty() ? "" : " on " + failure.node) + " (pid " +
         std::to_string(failure.pid) + ") failed first: " + describe(failure.ending) + ", " +
         seconds_text(failure.after) + " after the start, at " + local_time(failure.time_ms) + others;
}

// Escapes characters of a worker's text that a terminal would interpret. The text was cut before; escaping may lengthen
// it.
std::string shown(const std::string& text) { return printable(text, 2 * kLongestText); }

std::vector<std::string> failure_lines(const FailureRecord& failure, const std::string& headline) {
  std::vector<std::string> lines = {headline};
  if (!failure.message.empty()) {
    lines.push_back("its error: " + shown(failure.message));
  }
  if (!failure.log_file.empty()) {
    lines.push_back("its standard error is in " + failure.log_file);
  }
  if (!failure.last_lines.empty()) {
    lines.emplace_back("its last lines on standard error:");
  }
  for (const std::string& line : failure.last_lines) {
    lines.push_back("    " + shown(line));
  }
  return lines;
}

std::vector<std::string> lines_of_failures(const GroupEnd& end) {
  std::vector<std::string> lines = failure_lines(*end.failure, headline(*end.failure, ending_of_others(end)));
  if (end.before) {
    lines.push_back("the failure that caused this restart, and that ends the job:");
    const std::vector<std::string> before = failure_lines(*end.before, headline(*end.before, ""));
    lines.insert(lines.end(), before.begin(), before.end());
  }
  if (!end.text.empty()) {
    lines.push_back(end.text);
  }
  return lines;
}

}  // namespace

Verdict judge(const std::vector<MemberResult>& results, const RoundRules& rules) {
  if (auto end = find_end(results, rules)) {
    return {.kind = Verdict::Kind::kOver, .end = std::move(*end)};
  }
  Verdict verdict = judge_workers(results, rules);
  const bool is_used_up =
      std::ranges::any_of(results, [](const MemberResult& result) { return result.report && result.report->used_up; });
  // Nothing may start while processes are left, or after a signal.
  if (verdict.end.left_behind || is_used_up || find_interrupted(results, rules) != nullptr) {
    verdict.kind = Verdict::Kind::kOver;
  }
  return verdict;
}

std::vector<std::string> describe_replacement(FailureRecord failure, const std::string& limit) {
  failure.last_lines.clear();  // They were shown, or are in the file.
  const Ending& ending = failure.ending;
  const std::string end = ending.signal != 0 ? "was ended by " + signal_name(ending.signal, "signal ")
                                             : "ended with exit code " + std::to_string(ending.exit_code);
  return failure_lines(failure, "rank " + std::to_string(failure.rank) + " (pid " + std::to_string(failure.pid) + ") " +
                                    end + "; a new process takes its place (" + limit + ")");
}

std::string describe(const Ending& ending) {
  if (ending.signal == 0) {
    return "exit code " + std::to_string(ending.exit_code);
  }
  return "signal " + signal_name(ending.signal) + " (" + strsignal(ending.signal) + ")";
}

std::vector<std::string> describe_end(const GroupEnd& end) {
  switch (end.cause) {
    case GroupEnd::Cause::kFailed:
      return lines_of_failures(end);
    case GroupEnd::Cause::kInterrupted:
      return {"stopped by " + signal_name(end.signal) + (end.text.empty() ? "" : " on " + end.text) +
              ending_of_others(end)};
    case GroupEnd::Cause::kMembership:
    case GroupEnd::Cause::kAborted:
      return {end.text + ending_of_others(end)};
    case GroupEnd::Cause::kSucceeded:
      break;
  }
  return end.left_behind ? std::vector<std::string>{"every rank succeeded, but not all processes they left could be "
                                                    "ended, even by SIGKILL"}
                         : std::vector<std::string>{};
}

}  // namespace narrowcast::launcher
