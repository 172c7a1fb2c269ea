// The entries of the job's store by which launchers and ranks inform each other. Ranks read and write them below
// rendezvous::job_prefix(), and the next round does not have them.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "trainer/base/network/places.h"

namespace narrowcast::launcher {

using rendezvous::RankOfNode;

// Announces that `rank` has ended with success, to ranks that would wait for it.
void announce_ended_rank(c10d::Store& store, const std::string& run_id, const RankOfNode& rank);
// The same for a rank of a node that is new (Member::is_new). Does nothing if the node has not met the others, also if
// these wait for it: they go on when the node is turned away.
void announce_ended_newcomer(c10d::Store& store, const std::string& run_id, const RankOfNode& rank);

// Whether that was announced of a rank of this round.
bool has_ended_rank(c10d::Store& store, const std::string& run_id);

// Announces that a process is about to take the place of `rank`. Returns the number of such processes and of losses of
// nodes in this round. The keys of its last process are removed. A process does not count if the others do not wait for
// its node (rendezvous::Progress). Throws CorruptInputError if the store has a number or places that no launcher
// writes.
int64_t announce_start(c10d::Store& store, const std::string& run_id, const RankOfNode& rank);

// Sets the number of starts that a store of a host that took over begins with.
void set_starts(c10d::Store& store, const std::string& run_id, int64_t starts);

// Announces which ranks the nodes have.
void announce_places(c10d::Store& store, const std::string& run_id, const rendezvous::Places& places);

// Announces after which time without heartbeats a node is lost.
void announce_node_silence(c10d::Store& store, const std::string& run_id, std::chrono::milliseconds silence);

// Whether a rank of this round has told that they can form a new group.
bool can_regroup(c10d::Store& store, const std::string& run_id);

// Whether a rank has told before that it cannot take in newcomers while no node is lost.
bool keeps_newcomers_out(c10d::Store& store, const std::string& run_id);

// The number that a rank has told before, which the number of ranks must divide. 0: any number of ranks works.
int64_t divided_by_ranks(c10d::Store& store, const std::string& run_id);

// How far the ranks of a node that joins have come. If ranks do not tell it (rendezvous::kRegroups), they have met once
// ranks can form a new group.
rendezvous::Progress progress_of(c10d::Store& store, const std::string& run_id, const rendezvous::NodeRanks& node);

// Removes the keys of the ranks of a node that is gone.
void forget_ranks(c10d::Store& store, const std::string& run_id, const rendezvous::NodeRanks& node);

// Announces the loss of a node whose ranks have met the others, or after which the others are too few. The new places
// must have been announced.
void announce_loss(c10d::Store& store, const std::string& run_id);

// Ranks that other ranks have found silent. The value is the number of announced starts when those ranks formed their
// group: the report is about a process that was started no later.
using SilentRanks = std::map<RankOfNode, int64_t>;

// Returns which of `ranks` are reported. Entries with another content are ignored. Never waits for a key.
SilentRanks read_silent_ranks(c10d::Store& store, const std::string& run_id, const std::set<RankOfNode>& ranks);

// Parses the number in a report about a silent rank; empty if it is not a number from 0 up.
std::optional<int64_t> parse_starts(std::string_view text);

}  // namespace narrowcast::launcher
