// Keys of a job in the store that launchers serve and workers use, where both must know them.
#pragma once

#include <string>

namespace narrowcast::rendezvous {

// What the keys of the job's ranks begin with, before a slash.
inline std::string job_prefix(const std::string& run_id) { return "narrowcast/" + run_id; }

// The rank whose process ended last, with success, while others ran, in decimal; below job_prefix(). narrowcast-run
// writes it, and removes it before it starts the ranks again. Ranks that wait for others know by it that they wait in
// vain.
inline constexpr const char* kEndedRank = "ended_rank";

}  // namespace narrowcast::rendezvous
