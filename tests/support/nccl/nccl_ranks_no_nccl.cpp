// Replaces nccl_ranks.cpp in a build without CUDA.
#include <stdexcept>

#include "tests/support/nccl/nccl_ranks.h"

namespace narrowcast::testing {

std::string why_no_nccl_ranks() { return "no GPU: a build without CUDA"; }

std::string why_no_peer_ranks(int64_t /*world_size*/) { return why_no_nccl_ranks(); }

std::vector<int> spawn_nccl_ranks(int64_t /*world_size*/, const RankBody& /*body*/, const RanksOptions& /*options*/) {
  throw std::logic_error(why_no_nccl_ranks());
}

std::vector<int> spawn_peer_ranks(int64_t /*world_size*/, const RankBody& /*body*/, const RanksOptions& /*options*/) {
  throw std::logic_error(why_no_nccl_ranks());
}

std::function<void()> recorded_as_graph(const std::function<void()>& /*body*/) {
  throw std::logic_error(why_no_nccl_ranks());
}

}  // namespace narrowcast::testing
