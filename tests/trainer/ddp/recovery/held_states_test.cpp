#include "trainer/ddp/recovery/held_states.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"

namespace narrowcast::recovery {
namespace {

using ::testing::HasSubstr;

std::string refusal_of(const std::string& text) {
  return testing::error_message<CorruptInputError>([&] { parse_held_states(text, 2); });
}

std::string refusal_of_inventory(const std::string& text) {
  return testing::error_message<CorruptInputError>([&] { read_inventory(text, 1); });
}

TEST(ParseHeldStates, ReadsWhyNothingCanBeUsed) {
  const HeldStates read = parse_held_states(R"({"why_unusable": "it hangs", "states": []})", 2);
  EXPECT_EQ(read.why_unusable, "it hangs");
  EXPECT_FALSE(read.has(0));
  EXPECT_FALSE(read.is_lost());
}

TEST(ParseHeldStates, ARankWithoutAStateIsLost) {
  EXPECT_TRUE(parse_held_states(R"({"why_unusable": "", "states": []})", 2).is_lost());
}

TEST(ParseHeldStates, RefusesTheRestAndNamesTheRank) {
  for (const char* const text :
       {"", "{", "[]", "{}", R"({"why_unusable": 7, "states": []})", R"({"why_unusable": "", "states": [7]})",
        R"({"why_unusable": "", "states": [[7]]})"}) {
    EXPECT_THAT(refusal_of(text), HasSubstr("the state of rank 2")) << text;
  }
  EXPECT_THAT(refusal_of(R"({"why_unusable": "", "states": [[-1, {}]]})"), HasSubstr("its point is -1"));
}

// Common tensors come from whichever source sends least so far, others from the first.
TEST(ReadInventory, SpreadsCommonTensorsOverTheSources) {
  const std::string header = R"({"__metadata__": {"values": "V"},)"
                             R"("common.a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},)"
                             R"("common.b": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]},)"
                             R"("own.c": {"dtype": "F32", "shape": [1], "data_offsets": [12, 16]}})";
  const Inventory inventory = read_inventory("16 " + header, 2);
  EXPECT_EQ(inventory.values, "V");
  ASSERT_EQ(inventory.parts.size(), 3U);
  for (const Inventory::Part& part : inventory.parts) {
    EXPECT_EQ(part.source, part.name == "common.b" ? 1U : 0U) << part.name;
  }
}

TEST(ReadInventory, RefusesWhatIsNone) {
  for (const char* const text : {"", " {}", "x {}", "-1 {}", "16", "16{}"}) {
    EXPECT_THAT(refusal_of_inventory(text), HasSubstr("does not begin with a number of bytes")) << text;
  }
  EXPECT_THAT(refusal_of_inventory("0 {}"), HasSubstr("has no 'values'"));
}

}  // namespace

}  // namespace narrowcast::recovery
