// Ranks that each have a GPU, or share one.
#pragma once

#include <string>
#include <vector>

#include "tests/support/ranks.h"

namespace narrowcast::testing {

// Why spawn_nccl_ranks cannot be called here, for GTEST_SKIP; empty if it can.
std::string why_no_nccl_ranks();

// As spawn_ranks (tests/support/spawned_ranks.h); the group also has an NCCL backend for CUDA tensors, and rank r's
// current GPU is number r modulo their count. NCCL refuses two ranks on one GPU of one host, so each process gives
// itself for a host of its own (NCCL_HOSTID); they talk over the loopback interface.
std::vector<int> spawn_nccl_ranks(int64_t world_size, const RankBody& body, const RanksOptions& options = {});

}  // namespace narrowcast::testing
