#include "trainer/train/reporting/quantities.h"

#include <gtest/gtest.h>

namespace narrowcast::reporting {
namespace {

TEST(FormatCount, KeepsThreeDigits) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(7), "7");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1.00k");
  EXPECT_EQ(format_count(41234), "41.2k");
  EXPECT_EQ(format_count(412340), "412k");
  EXPECT_EQ(format_count(1.5e6), "1.50M");
}

TEST(FormatCount, RoundsIntoTheNextPrefix) {
  EXPECT_EQ(format_count(999.6), "1.00k");
  EXPECT_EQ(format_count(9.999e3), "10.0k");
  EXPECT_EQ(format_count(99.99e3), "100k");
  EXPECT_EQ(format_count(999999), "1.00M");
}

TEST(FormatCount, HasALargestPrefix) { EXPECT_EQ(format_count(5e18), "5000P"); }

TEST(FormatBytes, NamesTheUnit) {
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(26214400), "26.2 MB");
}

TEST(FormatDuration, PicksTwoUnits) {
  EXPECT_EQ(format_duration(0), "0.0 s");
  EXPECT_EQ(format_duration(9.94), "9.9 s");
  EXPECT_EQ(format_duration(9.96), "10 s");
  EXPECT_EQ(format_duration(59.4), "59 s");
  EXPECT_EQ(format_duration(59.6), "1 min 00 s");
  EXPECT_EQ(format_duration(185), "3 min 05 s");
  EXPECT_EQ(format_duration(3599.4), "59 min 59 s");
  EXPECT_EQ(format_duration(7625), "2 h 07 min");
}

}  // namespace
}  // namespace narrowcast::reporting
