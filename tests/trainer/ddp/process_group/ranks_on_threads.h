// Process groups whose ranks are threads of a test, on one machine.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/process_group.h>
#include "tests/support/patience.h"

namespace narrowcast::testing {

// One of `world_size` ranks on one node.
struct Place {
  int64_t rank = 0;
  int64_t world_size = 2;
};

inline WorkerEnv env_at(Place place, int64_t port) {
  WorkerEnv env;
  env.rank = env.local_rank = place.rank;
  env.world_size = env.local_world_size = place.world_size;
  env.master_addr = "127.0.0.1";
  env.master_port = port;
  return env;
}

// Each thread of a test is a rank and registers its group under a separate name.
inline ProcessGroupOptions options_of_thread(int64_t rank) {
  return {.timeout = kPatience, .group_name = "thread" + std::to_string(rank)};
}

// Joins the ranks, each with its place from env_of, and expects the correct sum over all ranks.
inline void sum_ranks_on_threads(int64_t world_size, const std::function<WorkerEnv(int64_t rank)>& env_of) {
  std::vector<std::vector<double>> sums(world_size);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      const ProcessGroupScope scope(env_of(rank), options_of_thread(rank));
      const auto group = c10d::resolve_process_group("thread" + std::to_string(rank));
      sums[rank] = all_reduce_sum(group, {static_cast<double>(rank + 1)});
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& sum : sums) {
    EXPECT_THAT(sum, ::testing::ElementsAre(static_cast<double>(world_size * (world_size + 1) / 2)));
  }
}

}  // namespace narrowcast::testing
