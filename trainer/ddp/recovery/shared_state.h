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
#include "trainer/ddp/shards/pieces.h"

namespace narrowcast::recovery {

// Tensors by name.
using TensorMap = hooks::HookState;

// The state of one rank at some point of its work.
struct RankState {
  int64_t point = 0;        // >= 0: points in their order
  std::string values = {};  // small values in any form, the same on all ranks at this point
  TensorMap common = {};    // the same bits on all ranks at this point
  TensorMap own = {};       // differ between ranks
  // Pieces of tensors that the ranks at this point hold together. share_states does not move them.
  pieces::Holding held = {};
  std::string why_unusable = {};  // If it is not empty, this rank lives on, but has no state: why.
};

// The state from which a rank of the new group goes on.
struct SharedState {
  RankState state;                  // if it was received: on the CPU, with `own` of the first source
  bool is_received = false;         // whether this rank was not at that point
  int64_t sources = 1;              // number of ranks at that point
  int64_t first_source = 0;         // the lowest rank at that point
  std::vector<int64_t> lost_ranks;  // ranks that had no state, in order
};

// A collective of the group. Ranks at the furthest point at which they hold everything keep their state, and are the
// sources of the others. Returns nothing, on all ranks, if there is no such point; then `why_nothing` says why if
// survivors have a state that is not complete, or say why they have none. Throws
//   - c10::DistBackendError if a peer fails,
//   - c10::ValueError naming a tensor that cannot be sent,
//   - CorruptInputError if a peer sends something else, or naming a tensor that differs between sources in dtype or
//     shape.
std::optional<SharedState> share_states(const ProcessGroupPtr& group, std::optional<RankState> own,
                                        std::string* why_nothing = nullptr);

// The same for ranks that can continue from any of several states, at different points; empty: lost. A state that
// cannot be used is the only one.
std::optional<SharedState> share_states(const ProcessGroupPtr& group, std::vector<RankState> own,
                                        std::string* why_nothing = nullptr);

}  // namespace narrowcast::recovery
