#include "ops/common/median.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace narrowcast {
namespace {

TEST(Median, IsTheMiddleOfSortedValues) {
  EXPECT_EQ(median({7}), 7);
  EXPECT_EQ(median({9, 1, 2}), 2);
  EXPECT_EQ(median({100, 4, 1, 2}), 3);
  EXPECT_THROW(median({}), c10::ValueError);
}

}  // namespace
}  // namespace narrowcast
