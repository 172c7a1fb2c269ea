#include "ops/common/per_group.h"

#include <gtest/gtest.h>

#include "tests/support/breakable_group.h"

namespace narrowcast {
namespace {

using testing::breakable_group;

TEST(PerGroup, HasOneValueForEachGroup) {
  PerGroup<int> numbers;
  const auto [first, of_first] = breakable_group();
  const auto [second, of_second] = breakable_group();
  *numbers.of(first) = 1;
  *numbers.of(second) = 2;
  EXPECT_EQ(*numbers.of(first), 1);
  EXPECT_EQ(*numbers.of(second), 2);
}

TEST(PerGroup, GivesAGroupInThePlaceOfAnEndedOneAValueOfItsOwn) {
  PerGroup<int> numbers;
  for (int i = 1; i <= 1000; ++i) {
    const auto [group, backend] = breakable_group();
    const auto number = numbers.of(group);
    ASSERT_EQ(*number, 0) << "group " << i;
    *number = i;
  }
}

TEST(PerGroup, LetsGroupsEndAndFreesTheirValues) {
  PerGroup<int> numbers;
  std::weak_ptr<int> value;
  {
    const auto [group, of_group] = breakable_group();
    value = numbers.of(group);
    EXPECT_EQ(group.use_count(), 1);
  }
  EXPECT_FALSE(value.expired());
  numbers.of(breakable_group().first);
  EXPECT_TRUE(value.expired());
}

TEST(PerGroup, KeepsWhatIsHeldAndShowsItToOthers) {
  PerGroup<int> numbers;
  std::shared_ptr<int> held;
  {
    const auto [group, backend] = breakable_group();
    held = numbers.of(group);
    *held = 7;
  }
  const auto [other, backend] = breakable_group();
  const auto made = numbers.of(other, [&](const PerGroup<int>::Values& others) {
    EXPECT_EQ(others, PerGroup<int>::Values{held});
    return std::make_shared<int>(*others.at(0) + 1);
  });
  EXPECT_EQ(*made, 8);
}

TEST(KeptByKey, FindsWhatWasKeptUnderAnEqualKey) {
  KeptByKey<std::string, int> kept;
  EXPECT_EQ(kept.find("a"), nullptr);
  const auto one = std::make_shared<const int>(1);
  kept.keep("a", one);
  EXPECT_EQ(kept.find("a"), one);
  EXPECT_EQ(kept.find("b"), nullptr);
}

}  // namespace
}  // namespace narrowcast
