#include "trainer/base/network/places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <narrowcast/errors.h>

namespace narrowcast::rendezvous {
namespace {

TEST(Places, NumbersTheRanksOfEachNode) {
  const Places places = {.changes = 2, .nodes = {{.node = 1, .ranks = 4}, {.node = 3, .ranks = 2}}};
  EXPECT_EQ(places.world_size(), 6);
  EXPECT_EQ(places.first_rank(1), 0);
  EXPECT_EQ(places.first_rank(3), 4);
  EXPECT_FALSE(places.first_rank(2).has_value());
  EXPECT_EQ(to_text(places), "2 1:4,3:2");
  EXPECT_EQ(parse_places("2 1:4,3:2"), places);
}

TEST(Places, NodesThatStartHaveNoRanks) {
  const Places places = {
      .changes = 2, .nodes = {{.node = 1, .ranks = 4}}, .starting = {{.node = 7, .ranks = 2}, {.node = 5, .ranks = 1}}};
  EXPECT_EQ(places.world_size(), 4);
  EXPECT_FALSE(places.first_rank(7).has_value());
  EXPECT_EQ(to_text(places), "2 1:4 7:2,5:1");
  EXPECT_EQ(parse_places("2 1:4 7:2,5:1"), places);
}

TEST(Places, ReadsARankOfANode) {
  EXPECT_EQ(to_text(RankOfNode{.node = 7, .rank_on_node = 2}), "7/2");
  EXPECT_EQ(parse_rank("7/2"), (RankOfNode{.node = 7, .rank_on_node = 2}));
  EXPECT_EQ(parse_rank("0/0"), RankOfNode{});
  for (const char* const text : {"", "7", "7/", "/2", "-7/2", "7/-2", "7/2/3", " 7/2", "7/2 ", "7/x"}) {
    EXPECT_FALSE(parse_rank(text)) << text;
  }
}

TEST(Places, ARankOfANodeThatMayGetOthersIsNotAlone) {
  EXPECT_TRUE(is_alone({}));
  WorkerEnv env;
  env.node = 1;
  EXPECT_FALSE(is_alone(env));
}

TEST(Places, RefusesWhatNoLauncherWrites) {
  for (const char* const text : {"",
                                 "1",
                                 "1 ",
                                 " 1:2",
                                 "-1 1:2",
                                 "x 1:2",
                                 "1 1",
                                 "1 1:",
                                 "1 :2",
                                 "1 1:0",
                                 "1 0:1",
                                 "1 1:2,",
                                 "1 1:2,1:3",
                                 "1 1:2, 3:4",
                                 "1 1:2 ",
                                 "1 1:2 1:2",
                                 "1 1:2 3:0",
                                 "1 1:2 3:4 5:1",
                                 "1  3:4",
                                 "1 1:2147483647 2:2147483647",
                                 "1 1:+2",
                                 "1 1:9999999999",
                                 "1 1:4,3:9223372036854775807",
                                 "1 1:2147483647,2:2147483647",
                                 "99999999999999999999 1:2"}) {
    EXPECT_THROW(parse_places(text), CorruptInputError) << text;
  }
}

}  // namespace
}  // namespace narrowcast::rendezvous
