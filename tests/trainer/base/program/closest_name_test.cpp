#include "trainer/base/program/closest_name.h"

#include <gtest/gtest.h>

namespace narrowcast::program {
namespace {

const std::vector<std::string> kNames = {"none", "noop", "allreduce", "quantize_per_tensor", "quantize_per_channel"};

TEST(ClosestName, FindsASlip) {
  EXPECT_EQ(closest_name("allreduse", kNames), "allreduce");
  EXPECT_EQ(closest_name("alreduce", kNames), "allreduce");
  EXPECT_EQ(closest_name("noopp", kNames), "noop");
  EXPECT_EQ(closest_name("quantize_per_chanel", kNames), "quantize_per_channel");
}

TEST(ClosestName, FindsABeginning) {
  EXPECT_EQ(closest_name("all", kNames), "allreduce");
  EXPECT_EQ(closest_name("quantize_per_", kNames), "quantize_per_tensor");
}

TEST(ClosestName, IsEmptyIfNothingIsNear) {
  EXPECT_EQ(closest_name("powersgd", kNames), "");
  EXPECT_EQ(closest_name("", kNames), "");
  EXPECT_EQ(closest_name("x", {}), "");
}

TEST(ClosestName, CountsEditsNotLetters) {
  EXPECT_EQ(closest_name("abcxyz", {"abcdyz"}), "abcdyz");  // one of six letters replaced
  EXPECT_EQ(closest_name("abxxxz", {"abcdyz"}), "");        // three of six: too far
}

}  // namespace
}  // namespace narrowcast::program
