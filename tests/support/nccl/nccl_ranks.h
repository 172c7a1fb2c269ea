// Ranks that each have a GPU, or share one.
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

// As spawn_ranks (tests/support/spawned_ranks.h); the group also has an NCCL backend for CUDA tensors, and rank r's
// current GPU is number r modulo their count. NCCL refuses two ranks on one GPU of one host, so each process gives
// itself for a host of its own (NCCL_HOSTID); they talk over the loopback interface.
std::vector<int> spawn_nccl_ranks(int64_t world_size, const RankBody& body, const RanksOptions& options = {});

// Why spawn_peer_ranks cannot be called here with so many ranks; empty if it can.
std::string why_no_peer_ranks(int64_t world_size);

// As spawn_nccl_ranks, but rank r is alone on GPU r, and ranks read and write each other's memory, as on one host.
std::vector<int> spawn_peer_ranks(int64_t world_size, const RankBody& body, const RanksOptions& options = {});

// Records what `body` enqueues on the current stream, one that is not the default one, as a CUDA graph. Returns what
// replays it there.
std::function<void()> recorded_as_graph(const std::function<void()>& body);

// All of a test whose body needs ranks with NCCL. Every rank must pass.
inline void run_nccl_ranks(int64_t world_size, const RankBody& body) {
  NARROWCAST_NEEDS_GPU(why_no_nccl_ranks());
  for (const int code : spawn_nccl_ranks(world_size, body)) EXPECT_EQ(code, kRankPassed);
}

// The same for ranks of spawn_peer_ranks. It is skipped where there is one GPU alone, whatever NARROWCAST_REQUIRE_GPU
// says.
inline void run_peer_ranks(int64_t world_size, const RankBody& body) {
  NARROWCAST_NEEDS_GPU(why_no_nccl_ranks());
  if (const std::string reason = why_no_peer_ranks(world_size); !reason.empty()) GTEST_SKIP() << reason;
  for (const int code : spawn_peer_ranks(world_size, body)) EXPECT_EQ(code, kRankPassed);
}

}  // namespace narrowcast::testing
