// Recovery in place: a training continues after a rank was lost, without a checkpoint.
//
// All replicas are equal, so each survivor holds what was lost. If the ranks of a node share the optimizer's state, a
// node holds all of it, so that the survivors of other nodes hold what was lost. So they do with second copies of
// shards. While a training runs, each rank can tell its state at the last point at which it was between steps. When a
// rank is lost, the training throws on all others, and leaves that state behind. A new process takes the lost rank's
// place, and all ranks form a new group. There they find the furthest point, and whoever is behind it gets the state
// from those who are not:
//
//   rank 0   step 41 done, fails in step 42    ──────────────────────────> continues with step 42
//   rank 1   killed in step 42; a new process  ── gets the state of 41 ──> continues with step 42
//   rank 2   step 41 done, fails in step 42    ──────────────────────────> continues with step 42
//
// Ranks end a step at different times, so some may have done one step more than others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/process_group.h>
#include "trainer/ddp/shards/pieces.h"
#include "trainer/train/checkpoint/manifest.h"

namespace narrowcast::training {

// The state of one rank at its last point between steps.
struct SurvivingState {
  checkpoint::Content content = {};  // as for a checkpoint; shares no tensors with the model
  // Whether the reports, evaluations and checkpoints due after the step were done: only at the point from which this
  // process resumed. After a step they are done again, since rank 0 may have been lost before it wrote them.
  bool is_reported = true;
  int64_t world_size = 1;  // of the group
  // If the optimizer is sharded: this rank's shard, which `content` lacks. The tensors are the optimizer's own. Over
  // all ranks, also the elements of the parameters that this rank has (held_state); `content` may have others wrongly.
  std::optional<pieces::HeldPieces> optimizer = {};
  // If it is not empty, this rank lives on without a state, because of this. Then only content.step is known.
  std::string why_unusable = {};
  // From these, too, this rank can go on: if it is not known whether other ranks have taken the last step, the state
  // before it. With shards over all ranks, the state before its reports, in which other ranks may have failed.
  std::vector<SurvivingState> earlier = {};
};

// The state from which a rank of the new group continues.
struct RecoveredState {
  checkpoint::Restored restored;
  bool is_reported = true;          // as in SurvivingState
  std::vector<int64_t> lost_ranks;  // ranks that had no state, in order
  int64_t former_ranks = 1;         // size of the group in which that state was reached
  int64_t lost_residuals = 0;       // its ranks whose residuals (error feedback) are lost
};

// Reads what a source tells of its state besides tensors. Throws CorruptInputError for a text that no rank writes.
void read_values(const std::string& text, RecoveredState& recovered);

// A collective of the new group. Ranks at the furthest point at which they hold everything keep their state, and are
// the sources of the others. Each source sends a part. Returns nothing, on all ranks, if there is no such point. Then
// `why_nothing` says why, if a rank has lived on. Throws c10::DistBackendError if a peer fails, and CorruptInputError
// if a peer sends something else.
//
// The shards of an optimizer stay where they are: load_pieces moves them once the ranks have new ones.
//
// The others begin with the hook state of a source, but without its residuals: their own residuals are lost. Until the
// next report they count the losses of a source. In a world of another size, restored.former is that of the sources'
// group, and until the next report the losses of the ranks that stay count for all.
std::optional<RecoveredState> share_states(const ProcessGroupPtr& group, std::optional<SurvivingState> own,
                                           std::string* why_nothing = nullptr);

}  // namespace narrowcast::training
