#include "trainer/base/host_list.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_message.h"

namespace narrowcast::slurm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(HostListTest, NamesOneByOne) {
  EXPECT_THAT(expand_host_list("a"), ElementsAre("a"));
  EXPECT_THAT(expand_host_list("gpu-1.example,b"), ElementsAre("gpu-1.example", "b"));
}

TEST(HostListTest, RangesKeepTheirZeros) {
  EXPECT_THAT(expand_host_list("a[01-03,7],b"), ElementsAre("a01", "a02", "a03", "a7", "b"));
  EXPECT_THAT(expand_host_list("n[8-11]"), ElementsAre("n8", "n9", "n10", "n11"));
  EXPECT_THAT(expand_host_list("n[098-101]x"), ElementsAre("n098x", "n099x", "n100x", "n101x"));
}

TEST(HostListTest, SeveralBracketsRunLikeNestedLoops) {
  EXPECT_THAT(expand_host_list("r[1-2]n[3,5]"), ElementsAre("r1n3", "r1n5", "r2n3", "r2n5"));
}

TEST(HostListTest, SaysWhatIsWrong) {
  const auto error_of = [](const std::string& list) {
    return testing::error_message<c10::ValueError>([&] { expand_host_list(list); });
  };
  EXPECT_THAT(error_of("a[1-2"), HasSubstr("'[' without ']'"));
  EXPECT_THAT(error_of("a1]"), HasSubstr("']' without '['"));
  EXPECT_THAT(error_of("a[3-1]"), HasSubstr("'3-1' runs backwards"));
  EXPECT_THAT(error_of("a[x-3]"), HasSubstr("'x' is not a number"));
  EXPECT_THAT(error_of("a[1-2-3]"), HasSubstr("'2-3' is not a number"));
  EXPECT_THAT(error_of("a[]"), HasSubstr("'' is not a number"));
  EXPECT_THAT(error_of("a,,b"), HasSubstr("name is empty"));
  EXPECT_THAT(error_of("a[0-99999999]"), HasSubstr("more than 65536"));
  EXPECT_THAT(error_of("a[0-999]b[0-999]"), HasSubstr("more than 65536"));
}

TEST(CountsTest, ExpandRepetitions) {
  EXPECT_THAT(expand_counts("4"), ElementsAre(4));
  EXPECT_THAT(expand_counts("2(x3),1"), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(expand_counts("8(x1000)"), SizeIs(1000));
}

TEST(CountsTest, SayWhatIsWrong) {
  for (const std::string list : {"", "two", "2(x", "2(x3", "2(xa)", "2(x)", "1,", "-1", "2(x99999)"}) {
    EXPECT_THROW(expand_counts(list), c10::ValueError) << list;
  }
}

}  // namespace
}  // namespace narrowcast::slurm
