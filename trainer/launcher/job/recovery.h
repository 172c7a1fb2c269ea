// Recovery in place: a new process takes the place of a rank that failed, and the other ranks live on.
//
// The ranks support it: survivors wait for the new process, and it gets their state. The launcher of the failed rank
// acts alone. It announces the start in the job's store, from which survivors learn that they wait for another process
// now. If ranks report in the store that one of this node's ranks is silent, its process is ended, and replaced in
// turn.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/launcher/group/group.h"
#include "trainer/launcher/group/restart_rule.h"
#include "trainer/launcher/job/supervisor.h"
#include "trainer/launcher/rendezvous/rendezvous.h"

namespace narrowcast::launcher {

// What follows the failure of a rank.
enum class Recovery {
  kAuto,     // in place if the program is narrowcast-train, else restart
  kInPlace,  // a new process takes its place
  kRestart,  // all ranks end, and start again
};

// Parses "auto", "in_place" or "restart". Throws c10::ValueError naming `flag` and `text` for anything else.
Recovery parse_recovery(const std::string& flag, std::string_view text);

// Returns whether the ranks of a job recover in place. `program` is the path of the program, and `own_folder` contains
// our programs. Nothing recovers if --max_restarts is 0.
bool recovers_in_place(Recovery wanted, int64_t max_restarts, const std::filesystem::path& program,
                       const std::filesystem::path& own_folder);

// The parts of a launcher that a recovery uses. Ranks are those of WorkerCommand.
struct RecoveryOptions {
  int64_t max_restarts = 0;
  std::function<int64_t(int64_t rank)> present = [](int64_t rank) { return rank; };  // the rank's number now
  std::function<RankOfNode(int64_t rank)> place = [](int64_t rank) { return RankOfNode{.rank_on_node = rank}; };
  std::function<FailureRecord(const WorkerFailure&)> record;           // describes a failure of the present process
  std::function<WorkerCommand(int64_t rank, int64_t number)> command;  // of the round's `number`th new process
  std::function<Clock::time_point()> now;
  std::function<void(const std::string&)> tell;  // prints a line for the user
};

// Decides for the ranks of one node.
class InPlaceRecovery : public Replacer {
 public:
  InPlaceRecovery(Rendezvous& rendezvous, RecoveryOptions options);

  // Begins another round.
  void begin_round();

  // Records that a rank of this node ended successfully. Ranks cannot meet again without it.
  void rank_succeeded() { any_succeeded_ = true; }

  // Returns true unless the failure would occur again, happened too often or after a rank's success, is that of a rank
  // that cannot recover, or the group stops the round.
  bool replaces(const WorkerFailure& failure) override;
  std::optional<WorkerCommand> replacement(int64_t rank) override;
  std::vector<int64_t> hanging(const std::set<int64_t>& running) override;

  // Adds to the report of a failure why it was not recovered from.
  void complete(NodeReport& report) const;

 private:
  Rendezvous& rendezvous_;
  const RecoveryOptions options_;
  RestartRule rule_;
  bool any_succeeded_ = false;
  std::optional<GroupEnd> refused_;       // the failure that the rule did not allow
  std::map<int64_t, int64_t> starts_;     // by rank: number of starts that were announced when its process started
  std::map<int64_t, int64_t> processes_;  // by rank: number of its present process; the first one has 0
  std::set<int64_t> ended_;               // ranks whose processes were found hanging
};

}  // namespace narrowcast::launcher
