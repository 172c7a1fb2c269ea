// The entries of the job's store by which launchers and ranks inform each other. Ranks read and write them below
// rendezvous::job_prefix(), and the next round does not have them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace narrowcast::launcher {

// Announces that `rank` has ended, to ranks that would wait for it.
void tell_ended_rank(c10d::Store& store, const std::string& run_id, int64_t rank);

// Announces that a process is about to take the place of `rank`. Returns the number of such processes in this round.
// Earlier reports that the rank is silent are removed. Throws CorruptInputError if the store has a number that no
// launcher writes.
int64_t announce_start(c10d::Store& store, const std::string& run_id, int64_t rank);

// Ranks that other ranks have found silent. The value is the number of announced starts when those ranks formed their
// group: the report is about a process that was started no later.
using SilentRanks = std::map<int64_t, int64_t>;

// Returns which of `ranks` are reported. Entries with another content are ignored. Never waits for a key.
SilentRanks read_silent_ranks(c10d::Store& store, const std::string& run_id, const std::set<int64_t>& ranks);

// Parses the number in a report about a silent rank; empty if it is not a number from 0 up.
std::optional<int64_t> parse_starts(std::string_view text);

}  // namespace narrowcast::launcher
