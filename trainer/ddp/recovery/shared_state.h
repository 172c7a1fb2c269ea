// The ranks of a new group find the furthest state that one of them has, and send it to those that are behind.
//
// All ranks that have done the same step have the same state, except what is a rank's own. So each rank at the furthest
// point is a source, and each source sends a part.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/process_group.h>

namespace narrowcast::recovery {

// Tensors by name.
using TensorMap = hooks::HookState;

// The state of one rank at some point of its work.
struct RankState {
  int64_t point = 0;        // >= 0: points in their order
  std::string values = {};  // small values in any form, the same on all ranks at this point
  TensorMap common = {};    // the same bits on all ranks at this point
  TensorMap own = {};       // differ between ranks
};

// The state from which a rank of the new group goes on.
struct SharedState {
  RankState state;                  // if it was received: on the CPU, with `own` of the first source
  bool is_received = false;         // whether this rank was behind
  int64_t sources = 1;              // number of ranks at the furthest point
  int64_t first_source = 0;         // the lowest rank at the furthest point
  std::vector<int64_t> lost_ranks;  // ranks that had no state, in order
};

// A collective of the group. Ranks at the furthest point keep their state, and are the sources of the others. Returns
// nothing, on all ranks, if no rank has a state. Throws
//   - c10::DistBackendError if a peer fails,
//   - c10::ValueError naming a tensor that cannot be sent,
//   - CorruptInputError if a peer sends something else, or naming a tensor that differs between sources in dtype or
//     shape.
std::optional<SharedState> share_states(const ProcessGroupPtr& group, std::optional<RankState> own);

}  // namespace narrowcast::recovery
