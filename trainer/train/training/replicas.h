// Whether all ranks hold the same model and optimizer, bit for bit. They would for ever, if no memory, card, driver or
// kernel ever corrupted one of them silently, after which every mean that it takes part in is a little wrong.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <vector>

#include <narrowcast/process_group.h>
#include "trainer/train/checkpoint/manifest.h"

namespace narrowcast::training {

// A collective: each rank hashes its tensors and all gather the hashes, 8 bytes each; true on all ranks alike if every
// rank's tensors have equal bits. Throws c10::DistBackendError if a peer failed.
bool equal_on_all_ranks(const ProcessGroupPtr& group, const std::vector<at::Tensor>& tensors);

// A collective: `replica`, under the same names on all ranks, must have the same bits on all of them `after_step`
// steps. Hashes and gathers as equal_on_all_ranks does, and the hash of each tensor only where they differ. Throws
// ReplicasDifferError, the same on all ranks, naming the ranks that are not as most are and the first tensor; where no
// more than half of the ranks are alike, who is alike. Throws c10::DistBackendError if a peer failed.
void check_replicas(const ProcessGroupPtr& group, const checkpoint::TensorMap& replica, int64_t after_step);

}  // namespace narrowcast::training
