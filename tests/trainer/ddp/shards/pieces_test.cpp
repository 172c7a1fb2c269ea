#include "trainer/ddp/shards/pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/trainer/ddp/shards/shards_of_state.h"

namespace narrowcast::pieces {
namespace {

using ::testing::HasSubstr;

TEST(Pieces, TheFirstGapIsWhatNobodyHolds) {
  const Holding first = held_pieces(2, 0).holding();
  const Holding second = held_pieces(2, 1).holding();
  const Holding of_three = held_pieces(3, 1).holding();
  EXPECT_EQ(first_gap({&first, &second}), std::nullopt);
  EXPECT_EQ(first_gap({&second, &of_three, &first}), std::nullopt);
  EXPECT_EQ(first_gap({}), std::nullopt);
  const auto gap = first_gap({&first, &of_three});
  ASSERT_TRUE(gap.has_value());
  EXPECT_EQ(*gap, (Range{"p3", of_three.ranges.back().end, 5000}));
  EXPECT_EQ(first_gap({&second}), (Range{"p0", 0, 1000}));
}

TEST(Pieces, AHoldingIsReadAsItWasWritten) {
  const Holding holding = held_pieces(3, 1).holding();
  const Holding read = read_holding(to_json(holding), "rank 1");
  EXPECT_EQ(read.numels, holding.numels);
  EXPECT_EQ(read.ranges, holding.ranges);
  for (const char* const text :
       {"[]", R"({"numels":{}})", R"({"numels":{"a":4},"ranges":[["a",0,5]]})",
        R"({"numels":{"a":4},"ranges":[["b",0,1]]})", R"({"numels":{"a":4},"ranges":[["a",2,2]]})"}) {
    EXPECT_THAT(testing::error_message<CorruptInputError>([&] { read_holding(nlohmann::json::parse(text), "rank 1"); }),
                HasSubstr("rank 1"))
        << text;
  }
}

}  // namespace
}  // namespace narrowcast::pieces
