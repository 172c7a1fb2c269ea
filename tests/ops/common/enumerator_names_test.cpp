#include "ops/common/enumerator_names.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "tests/support/error_message.h"

namespace narrowcast {
namespace {

using testing::error_message;

enum class Fruit { kApple, kPear, kPlum };

constexpr EnumeratorNames<Fruit, 3> kFruit{
    "fruit", "Fruit", {{{Fruit::kPlum, "plum"}, {Fruit::kApple, "apple"}, {Fruit::kPear, "pear"}}}};
constexpr EnumeratorNames<Fruit, 1> kOne{"fruit", "Fruit", {{{Fruit::kPlum, "plum"}}}};

TEST(EnumeratorNames, TellAndTakeEveryValue) {
  EXPECT_EQ(kFruit.name_of(Fruit::kApple), "apple");
  for (const auto& [value, name] : kFruit.names) {
    EXPECT_EQ(kFruit.name_of(value), name);
    EXPECT_EQ(kFruit.find(name), value);
    EXPECT_EQ(kFruit.parse(name), value);
    EXPECT_EQ(kFruit.parse_known(name), value);
  }
}

TEST(EnumeratorNames, RefuseANumberWithoutAName) {
  EXPECT_EQ(error_message<c10::ValueError>([] { kFruit.name_of(static_cast<Fruit>(7)); }),
            "fruit: 7 is not a valid Fruit");
  EXPECT_EQ(error_message<c10::ValueError>([] { kOne.name_of(Fruit::kApple); }), "fruit: 0 is not a valid Fruit");
}

TEST(EnumeratorNames, RefuseUnknownNamesAndTellTheKnownOnes) {
  EXPECT_EQ(kFruit.find("Plum"), std::nullopt);
  EXPECT_EQ(error_message<c10::ValueError>([] { kFruit.parse("fig"); }),
            "fruit: must be plum, apple or pear, but is 'fig'");
  EXPECT_EQ(error_message<c10::ValueError>([] { kFruit.parse_known("fig"); }),
            "fruit: unknown name 'fig'; known: plum, apple, pear");
  EXPECT_EQ(error_message<c10::ValueError>([] { kOne.parse(""); }), "fruit: must be plum, but is ''");
}

}  // namespace
}  // namespace narrowcast
