// Ranks that have a GPU each, or share one.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/devices.h"
#include "tests/support/ranks.h"

namespace narrowcast::testing {

// Why spawn_nccl_ranks cannot be called here; empty if it can.
std::string why_no_nccl_ranks();

// Like spawn_ranks (tests/support/spawned_ranks.h); the group also has an NCCL backend for CUDA tensors, and rank r's
// current GPU is number r modulo their count. NCCL refuses two ranks on one GPU of one host. Each process therefore
// claims to be a separate host (NCCL_HOSTID), and they communicate over the loopback interface.
std::vector<int> spawn_nccl_ranks(int64_t world_size, const RankBody& body, const RanksOptions& options = {});

// Why spawn_peer_ranks cannot be called here with `world_size` ranks; empty if it can.
std::string why_no_peer_ranks(int64_t world_size);

// Like spawn_nccl_ranks, but each rank has GPU r to itself, and ranks read and write each other's memory, as on one
// host.
std::vector<int> spawn_peer_ranks(int64_t world_size, const RankBody& body, const RanksOptions& options = {});

// Records what `body` enqueues on the current stream, which must not be the default one, as a CUDA graph. Returns a
// function that replays it there.
std::function<void()> recorded_as_graph(const std::function<void()>& body);

// The whole body of a test that needs ranks with NCCL. Every rank must pass.
inline void run_nccl_ranks(int64_t world_size, const RankBody& body) {
  NARROWCAST_NEEDS_GPU(why_no_nccl_ranks());
  for (const int code : spawn_nccl_ranks(world_size, body)) EXPECT_EQ(code, kRankPassed);
}

// The same for ranks of spawn_peer_ranks. If there are GPUs, but too few for the ranks, the test is skipped even with
// NARROWCAST_REQUIRE_GPU.
inline void run_peer_ranks(int64_t world_size, const RankBody& body) {
  NARROWCAST_NEEDS_GPU(why_no_nccl_ranks());
  if (const std::string reason = why_no_peer_ranks(world_size); !reason.empty()) GTEST_SKIP() << reason;
  for (const int code : spawn_peer_ranks(world_size, body)) EXPECT_EQ(code, kRankPassed);
}

}  // namespace narrowcast::testing
