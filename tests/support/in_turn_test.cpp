#include "tests/support/in_turn.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

namespace narrowcast::test {
namespace {

using ::testing::ElementsAre;
using Pair = std::tuple<int, char>;

TEST(InTurn, ShiftsItsTurnsSoThatPairsOfNeighboursMeetAll) {
  EXPECT_THAT(in_turn(std::vector{0, 1, 2, 3}, std::vector{'a', 'b'}),
              ElementsAre(Pair(0, 'a'), Pair(1, 'b'), Pair(2, 'b'), Pair(3, 'a')));
}

TEST(InTurn, TakesDifferentOnesForEachAndAllEquallyOften) {
  const std::vector firsts{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto pairs = in_turn(firsts, std::vector{'a', 'b', 'c', 'd', 'e'}, 2);
  EXPECT_EQ(std::set<Pair>(pairs.begin(), pairs.end()).size(), 2 * firsts.size());
  std::map<char, int> uses;
  for (const auto& [first, second] : pairs) ++uses[second];
  for (const auto& [second, count] : uses) EXPECT_EQ(count, 4) << second;
}

}  // namespace
}  // namespace narrowcast::test
