#include "trainer/base/files/names.h"

#include <gtest/gtest.h>

namespace narrowcast {
namespace {

TEST(DescribeNames, NamesFiveAndCountsTheOthers) {
  EXPECT_EQ(describe_names({"a"}), "'a'");
  EXPECT_EQ(describe_names({"a", "b", "c", "d", "e"}), "'a', 'b', 'c', 'd', 'e'");
  EXPECT_EQ(describe_names({"a", "b", "c", "d", "e", "f"}), "'a', 'b', 'c', 'd', 'e' and 1 more");
  EXPECT_EQ(describe_names({"a\nb", "it's"}), "'a\\nb', 'it\\'s'");
}

}  // namespace
}  // namespace narrowcast
