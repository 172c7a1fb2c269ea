#include "trainer/base/program/path_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace narrowcast::program {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> parsed(const std::string& text) {
  PathList list = {.paths = {"former"}};
  std::string error;
  EXPECT_TRUE(AbslParseFlag(text, &list, &error)) << error;
  return list.paths;
}

TEST(PathList, IsSeparatedByCommas) {
  EXPECT_THAT(parsed(""), IsEmpty());
  EXPECT_THAT(parsed("a"), ElementsAre("a"));
  EXPECT_THAT(parsed("a b,/c/d"), ElementsAre("a b", "/c/d"));
  EXPECT_THAT(parsed("a,,b,"), ElementsAre("a", "", "b", "")) << "no file has an empty name, which is said later";
}

TEST(PathList, ACommaOfAPathHasABackslash) {
  EXPECT_THAT(parsed(R"(a\,b)"), ElementsAre("a,b"));
  EXPECT_THAT(parsed(R"(\,,c\d,e\)"), ElementsAre(",", R"(c\d)", R"(e\)"));
}

TEST(PathList, PrintsWhatGivesItAgain) {
  for (const std::string text : {"", "a", "a,b", R"(a\,b,c)", R"(\,\,,d)", "a,,b"}) {
    EXPECT_EQ(AbslUnparseFlag({.paths = parsed(text)}), text);
  }
}

}  // namespace
}  // namespace narrowcast::program
