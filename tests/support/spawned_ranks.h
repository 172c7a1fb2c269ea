// Ranks as processes that share nothing with the one that starts them.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/support/ranks.h"

namespace narrowcast::testing {

// As fork_ranks, for ranks that need what a forked process cannot use, as CUDA is once its parent has initialised it.
// Each rank starts this test program anew, for the current test alone, with `variables` in its environment, and is a
// rank when it comes here: a test calls this once, and makes what `body` needs before.
std::vector<int> spawn_ranks(int64_t world_size, const RankBody& body, const RanksOptions& options = {},
                             const std::function<std::map<std::string, std::string>(int64_t rank)>& variables = {});

}  // namespace narrowcast::testing
