#include "trainer/launcher/job/recovery.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "trainer/base/program/failure.h"
#include "trainer/launcher/group/verdict.h"

namespace narrowcast::launcher {
Recovery parse_recovery(const std::string& flag, std::string_view text) {
  for (const auto& [name, value] :
       {std::pair{"auto", Recovery::kAuto}, {"in_place", Recovery::kInPlace}, {"restart", Recovery::kRestart}}) {
    if (text == name) {
      return value;
    }
  }
  TORCH_CHECK_VALUE(false, flag, "=", text, ": must be auto, in_place or restart");
}

bool recovers_in_place(Recovery wanted, int64_t max_restarts, const std::filesystem::path& program,
                       const std::filesystem::path& own_folder) {
  std::error_code error;
  const bool is_trainer =
      program.filename() == "narrowcast-train" && std::filesystem::equivalent(program.parent_path(), own_folder, error);
  return max_restarts > 0 && (wanted == Recovery::kInPlace || (wanted == Recovery::kAuto && is_trainer));
}

InPlaceRecovery::InPlaceRecovery(Rendezvous& rendezvous, RecoveryOptions options)
    : rendezvous_(rendezvous), options_(std::move(options)), rule_(RestartRule::in_place(options_.max_restarts)) {}

void InPlaceRecovery::begin_round() {
  any_succeeded_ = false;
  refused_.reset();
  starts_.clear();
  processes_.clear();
  ended_.clear();
}

// A rank ends with kPeerFailed if it cannot recover, for example after a time-out, when another one hangs. A new
// process would wait for that rank in vain.
bool InPlaceRecovery::replaces(const WorkerFailure& failure) {
  const bool cannot_recover = failure.ending.signal == 0 && failure.ending.exit_code == program::kPeerFailed;
  if (cannot_recover || any_succeeded_ || rendezvous_.directive().kind != Directive::Kind::kRun) {
    return false;
  }
  GroupEnd end{.cause = GroupEnd::Cause::kFailed, .failure = options_.record(failure)};
  if (!rule_.allows(end, options_.now())) {
    refused_ = std::move(end);
    return false;
  }
  const std::string limit = std::to_string(rule_.restarts()) +
                            " of --max_restarts=" + std::to_string(options_.max_restarts) + " within an hour";
  for (const std::string& line : describe_replacement(*end.failure, limit)) {
    options_.tell(line);
  }
  rendezvous_.announce_start(options_.place(failure.rank));
  return true;
}

std::optional<WorkerCommand> InPlaceRecovery::replacement(int64_t rank) {
  const std::optional<int64_t> number = rendezvous_.announced_start(options_.place(rank));
  if (!number) {
    return std::nullopt;
  }
  starts_[rank] = *number;
  ended_.erase(rank);
  // A process of a node that has not met the others does not count as a start.
  const int64_t process = processes_[rank] = std::max(*number, processes_[rank] + 1);
  return options_.command(rank, process);
}

// A report with a smaller number is about an earlier process.
std::vector<int64_t> InPlaceRecovery::hanging(const std::set<int64_t>& running) {
  std::set<RankOfNode> asked;
  for (const int64_t rank : running) {
    asked.insert(options_.place(rank));
  }
  const SilentRanks silent = rendezvous_.silent_ranks(asked);
  std::vector<int64_t> found;
  for (const int64_t rank : running) {
    const auto report = silent.find(options_.place(rank));
    if (report != silent.end() && report->second >= starts_[rank] && ended_.insert(rank).second) {
      options_.tell("rank " + std::to_string(options_.present(rank)) + " is silent for other ranks: it is killed");
      found.push_back(rank);
    }
  }
  return found;
}

void InPlaceRecovery::complete(NodeReport& report) const {
  if (!refused_ || !report.failure) {
    return;
  }
  report.used_up = !refused_->failure->is_final;
  if (report.failure->rank == refused_->failure->rank) {
    report.failure = refused_->failure;
    report.before = refused_->before;
  }
}

}  // namespace narrowcast::launcher
