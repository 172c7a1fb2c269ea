// Ranks as processes that share nothing with the process that starts them.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/support/ranks.h"

namespace narrowcast::testing {

// Like fork_ranks, for ranks that need something that a forked process cannot use, such as CUDA once its parent has
// initialised it. Each rank starts this test program again, for the current test only, with `variables` in its
// environment. It becomes a rank when it reaches this call, so a test calls this once and prepares before what `body`
// needs.
std::vector<int> spawn_ranks(int64_t world_size, const RankBody& body, const RanksOptions& options = {},
                             const std::function<std::map<std::string, std::string>(int64_t rank)>& variables = {});

}  // namespace narrowcast::testing
