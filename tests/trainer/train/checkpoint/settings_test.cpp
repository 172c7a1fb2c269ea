#include "trainer/train/checkpoint/settings.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "tests/support/error_message.h"

namespace narrowcast::checkpoint {
namespace {

using nlohmann::json;
using testing::error_message;

const json kSaved = {{"hook", "int8"}, {"seed", 3}};

std::string complaint(const json& current) {
  return error_message<c10::ValueError>([&] { check_settings(kSaved, current, "DIR/step-00000100"); });
}

TEST(CheckSettings, NamesTheSettingAndBothValues) {
  EXPECT_NO_THROW(check_settings(kSaved, kSaved, "DIR"));
  EXPECT_EQ(complaint({{"hook", "int4"}, {"seed", 3}}), "hook: is int4, but int8 in the checkpoint DIR/step-00000100");
  EXPECT_EQ(complaint({{"hook", "int8"}, {"seed", 4}}), "seed: is 4, but 3 in the checkpoint DIR/step-00000100");
  EXPECT_EQ(complaint({{"hook", "int8"}}),
            "seed: this training has none, but it is 3 in the checkpoint DIR/step-00000100");
  EXPECT_EQ(complaint({{"hook", "int8"}, {"seed", 3}, {"width", 8}}),
            "width: is 8, but the checkpoint DIR/step-00000100 has none");
  EXPECT_EQ(complaint({{"error_feedback", true}, {"hook", "int4"}, {"seed", 3}}),
            "hook: is int4, but int8 in the checkpoint DIR/step-00000100")
      << "what both have comes first";
}

TEST(CheckSettings, ComparesValuesNotTexts) {
  EXPECT_EQ(complaint({{"hook", "int8"}, {"seed", "3"}}), "seed: is 3, but 3 in the checkpoint DIR/step-00000100");
  EXPECT_THROW(check_settings({{"hook", "nothing"}}, json::object(), "DIR"), c10::ValueError);
}

TEST(CheckSettings, ShowsValuesOnOneLineAndNotEndless) {
  EXPECT_EQ(error_message<c10::ValueError>([&] {
              check_settings({{"hook", "\x1b[2J\n"}}, {{"hook", "none"}}, "DIR");
            }),
            "hook: is none, but \\x1b[2J\\n in the checkpoint DIR");
  EXPECT_LE(error_message<c10::ValueError>([&] {
              check_settings({{"hook", std::string(1 << 20, 'x')}}, {{"hook", "none"}}, "DIR");
            }).size(),
            400u);
}

TEST(DescribeChanges, ListsThemAll) {
  EXPECT_EQ(describe_changes({{"a", 1}}, {{"b", "x"}}), "a (none, was 1), b (x, was none)");
  EXPECT_EQ(describe_changes(kSaved, kSaved), "");
  EXPECT_EQ(describe_changes(kSaved, {{"hook", "int4"}, {"seed", 4}}), "hook (int4, was int8), seed (4, was 3)");
}

}  // namespace
}  // namespace narrowcast::checkpoint
