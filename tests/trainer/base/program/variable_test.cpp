#include "trainer/base/program/variable.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace narrowcast::program {
namespace {

using ::testing::ElementsAre;

// An enum with names, as options have them.
enum class Colour { kRed, kBlue };
std::string_view to_string(Colour colour) { return colour == Colour::kRed ? "red" : "blue"; }
Colour parse_colour(const std::string& name) { return name == "red" ? Colour::kRed : Colour::kBlue; }

bool set(const Variable& variable, const std::string& text) {
  std::string reason;
  return variable.set(text, reason);
}

TEST(Variable, SetsWhatItStandsFor) {
  int64_t steps = 3;
  const Variable number = variable(steps);
  EXPECT_EQ(number.type, "integer");
  EXPECT_EQ(number.text, "3");
  EXPECT_TRUE(set(number, "-7"));
  EXPECT_EQ(steps, -7);
  EXPECT_EQ(number.value(), -7);
  for (const char* const text : {"", "x", "1.5", "9223372036854775808"}) {
    EXPECT_FALSE(set(number, text)) << text;
  }
  EXPECT_EQ(steps, -7);
  bool is_on = false;
  EXPECT_TRUE(set(variable(is_on), "yes"));
  EXPECT_TRUE(is_on);
  double rate = 0.005;
  EXPECT_EQ(variable(rate).text, "0.005");
}

TEST(Variable, OfAnOptionalIsNullWithoutAValue) {
  std::optional<double> rate;
  const Variable optional = variable(rate);
  EXPECT_EQ(optional.text, "");
  EXPECT_TRUE(optional.value().is_null());
  EXPECT_FALSE(set(optional, "x"));
  EXPECT_FALSE(rate.has_value());
  EXPECT_TRUE(set(optional, "0"));
  EXPECT_EQ(rate, 0);
  const Variable or_zero = variable_or_zero(rate);
  EXPECT_EQ(or_zero.text, "0");
  EXPECT_TRUE(set(or_zero, "2.5"));
  EXPECT_EQ(or_zero.value(), 2.5);
  EXPECT_TRUE(set(or_zero, "0"));
  EXPECT_FALSE(rate.has_value());
}

TEST(Variable, OfAnEnumHasItsNames) {
  Colour colour = Colour::kRed;
  const Variable named = variable(colour, parse_colour);
  EXPECT_EQ(named.type, "text");
  EXPECT_EQ(named.text, "red");
  EXPECT_TRUE(set(named, "blue"));
  EXPECT_EQ(colour, Colour::kBlue);
  EXPECT_EQ(named.value(), "blue");
  std::optional<Colour> none;
  const Variable optional = variable(none, parse_colour);
  EXPECT_TRUE(optional.value().is_null());
  EXPECT_TRUE(set(optional, "red"));
  EXPECT_EQ(none, Colour::kRed);
}

TEST(Variable, ReadsPathsSecondsAndKeys) {
  std::vector<std::string> paths;
  EXPECT_TRUE(set(variable(paths), "a,b\\,c"));
  EXPECT_THAT(paths, ElementsAre("a", "b,c"));
  EXPECT_EQ(variable(paths).text, "a,b\\,c");
  std::chrono::milliseconds time = std::chrono::seconds(3);
  const Variable seconds = variable(time);
  EXPECT_EQ(seconds.text, "3");
  EXPECT_TRUE(set(seconds, "10"));
  EXPECT_FALSE(set(seconds, "9223372036854775807")) << "as milliseconds it is too large";
  EXPECT_EQ(time, std::chrono::seconds(10));
  std::map<std::string, int64_t> sizes;
  const Variable width = variable(sizes, "width");
  EXPECT_TRUE(width.value().is_null());
  EXPECT_FALSE(set(width, "wide"));
  EXPECT_TRUE(sizes.empty());
  EXPECT_TRUE(set(width, "8"));
  EXPECT_EQ(sizes.at("width"), 8);
}

}  // namespace
}  // namespace narrowcast::program
