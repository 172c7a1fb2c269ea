// Whether all ranks hold the same bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include <narrowcast/consensus.h>

namespace narrowcast::training {

// A collective: each rank hashes its tensors and all gather the hashes, 8 bytes each; true on all ranks
// alike if every rank's tensors have equal bits. Throws c10::DistBackendError if a peer failed.
bool equal_on_all_ranks(const ProcessGroupPtr& group, const std::vector<at::Tensor>& tensors);

}  // namespace narrowcast::training
