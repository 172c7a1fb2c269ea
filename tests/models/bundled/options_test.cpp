#include "models/bundled/options.h"

#include <gtest/gtest.h>

#include <array>

#include "tests/support/error_message.h"

namespace narrowcast::models {
namespace {

using narrowcast::testing::error_message;

struct Shape {
  int64_t width = 4;
  int64_t depth = 2;
};

std::span<const IntegerOption<Shape>> shape_table() {
  static constexpr std::array<IntegerOption<Shape>, 2> table = {{
      {"width", &Shape::width, 1, 8},
      {"depth", &Shape::depth, 0, 3},
  }};
  return table;
}

std::string read_error(const ModelOptions& values) {
  return error_message<c10::ValueError>([&] { read_options("model", shape_table(), values); });
}

TEST(Options, GivenKeysReplaceTheDefaults) {
  EXPECT_EQ(read_options("model", shape_table(), ModelOptions()).width, 4);
  const Shape shape = read_options("model", shape_table(), {{"depth", 0}});
  EXPECT_EQ(shape.width, 4);
  EXPECT_EQ(shape.depth, 0);
}

TEST(Options, EveryValueIsWrittenAndReadBack) {
  const ModelOptions values = {{"width", 8}, {"depth", 3}};
  EXPECT_EQ(write_options(shape_table(), read_options("model", shape_table(), values)), values);
}

TEST(Options, BothEndsOfARangeBelongToIt) {
  EXPECT_NO_THROW(read_options("model", shape_table(), {{"width", 1}}));
  EXPECT_NO_THROW(read_options("model", shape_table(), {{"width", 8}}));
  EXPECT_EQ(read_error({{"width", 0}}), "model: option width must be in 1..8, but is 0");
  EXPECT_EQ(read_error({{"width", 9}}), "model: option width must be in 1..8, but is 9");
}

TEST(Options, UnknownKeysListTheKnownOnes) {
  EXPECT_EQ(read_error({{"wdith", 1}}), "model: unknown option 'wdith'; known: width, depth");
}

}  // namespace
}  // namespace narrowcast::models
