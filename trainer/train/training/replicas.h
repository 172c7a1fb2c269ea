// Whether all ranks hold the same model and optimizer, bit for bit. They do unless memory, a GPU, a driver or a kernel
// silently corrupts a replica; every later mean in which it takes part is then slightly wrong.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <vector>

#include <narrowcast/process_group.h>
#include "trainer/ddp/shards/pieces.h"
#include "trainer/train/checkpoint/manifest.h"
#include "trainer/train/training/training_loop.h"
#include "trainer/train/training/training_state.h"

namespace narrowcast::training {

// Whether all ranks' replicas must have equal bits between steps. With PowerSGD's averaged memory ranks on different
// machines may differ in the last bits (docs/reference/hooks.md).
bool replicas_must_be_equal(const TrainingSetup& setup, const ReplicatedModel& model);

// A collective: each rank hashes its tensors, and all ranks gather the hashes, 8 bytes each. Returns true on all ranks
// if all ranks' tensors have equal bits. Throws c10::DistBackendError if a peer failed.
bool equal_on_all_ranks(const ProcessGroupPtr& group, const std::vector<at::Tensor>& tensors);

// A collective: checks that `replica`, with the same names on all ranks, has the same bits on all of them `after_step`
// steps. Hashes and gathers as equal_on_all_ranks does, and the hash of each tensor only if they differ. Throws
// ReplicasDifferError, the same on all ranks, naming the first tensor that differs and the ranks that differ from the
// majority. Without a majority it names the groups of equal ranks. Throws c10::DistBackendError if a peer failed.
void check_replicas(const ProcessGroupPtr& group, const checkpoint::TensorMap& replica, int64_t after_step);

// A collective: checks that two ranks hold each element of a sharded optimizer's state that one holds, in equal bits.
// Each rank gathers the borders of all pieces, then the hash of each tensor of each piece, cut at these borders. Throws
// ReplicasDifferError, the same on all ranks, naming the first tensor that differs, or that is on one rank only, and
// its ranks. Throws c10::DistBackendError if a peer failed.
void check_shards(const ProcessGroupPtr& group, const pieces::HeldPieces& held, int64_t after_step);

}  // namespace narrowcast::training
