
#include <gtest/gtest.h>

#include <narrowcast/wire_format.h>
#include "ops/collectives/all_reduce/algorithms/route.h"

namespace narrowcast::collectives {
namespace {

TEST(ChooseRoute, TwoRanksTakeOneShotAtAnySize) {
  for (const int64_t numel : {0, 1, 1000, 100'000'000}) {
    EXPECT_EQ(choose_route(numel, 2, WireFormat::kInt8B128), Route::kOneShot) << numel;
  }
}

TEST(ChooseRoute, OneRankGoesNowhere) { EXPECT_EQ(choose_route(1000, 1, WireFormat::kInt4B32), Route::kNowhere); }

// (W - 1) S b - 2 (W - 1) / W S b = a, solved for S.
TEST(ChooseRoute, FromThreeRanksOnSizeDecides) {
  const LinkCost link;
  for (const int64_t world_size : {3, 4, 5, 8}) {
    const auto ranks = static_cast<double>(world_size);
    const double limit = link.seconds_per_hop / (link.seconds_per_byte * (ranks - 1) * (1 - 2 / ranks));
    const auto numel = static_cast<int64_t>(limit / 4);
    EXPECT_EQ(choose_route(numel - 1, world_size, WireFormat::kFp32), Route::kOneShot) << world_size;
    EXPECT_EQ(choose_route(numel + 1, world_size, WireFormat::kFp32), Route::kTwoShot) << world_size;
    EXPECT_EQ(choose_route(numel + 1, world_size, WireFormat::kInt4B32), Route::kOneShot) << world_size;
  }
}

TEST(ChooseRoute, AFasterLinkPutsOffTheSecondShot) {
  EXPECT_EQ(choose_route(1'000'000, 4, WireFormat::kInt8B128), Route::kTwoShot);
  EXPECT_EQ(choose_route(1'000'000, 4, WireFormat::kInt8B128, {50e-6, 1e-11}), Route::kOneShot);
}

}  // namespace
}  // namespace narrowcast::collectives
