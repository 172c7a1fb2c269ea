#include "trainer/base/files/json.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>

#include <narrowcast/errors.h>
#include "ops/common/text.h"
#include "tests/support/error_message.h"

namespace narrowcast::files {
namespace {

using narrowcast::testing::error_message;
using nlohmann::json;

// `depth` nested objects and arrays in turn, closed if `closed`.
std::string nested(int64_t depth, bool closed = true) {
  std::string text;
  std::string end;
  for (int64_t i = 0; i < depth; ++i) {
    text += i % 2 == 0 ? "[" : "{\"a\":";
    end.insert(0, i % 2 == 0 ? "]" : "}");
  }
  return text + (depth % 2 == 0 ? "1" : "") + (closed ? end : "");
}

std::string problem_of(std::string_view text, const JsonLimits& limits = {}) {
  return try_parse_json(text, limits).problem;
}

TEST(ParseJson, GivesTheValue) {
  EXPECT_EQ(parse_json(R"({"a": [1, 2.5, "x\n", null, true]})", "f"), (json{{"a", {1, 2.5, "x\n", nullptr, true}}}));
  EXPECT_EQ(parse_json("7", "f"), 7);
  EXPECT_EQ(parse_json("\"[[[\"", "f", {.depth = 0}), "[[[");
}

TEST(ParseJson, NamesWhatIsNoJson) {
  EXPECT_EQ(problem_of(""), "is not valid JSON at byte 1");
  EXPECT_EQ(problem_of("{\"a\":1,}"), "is not valid JSON at byte 8");
  EXPECT_EQ(problem_of(std::string_view("{}\0x", 4)), "is not valid JSON at byte 3");
  EXPECT_EQ(problem_of("[1e999]"), "is not valid JSON: a number is too large");
  EXPECT_EQ(error_message<CorruptInputError>([] { parse_json("[1", "FILE: metadata 'x'"); }),
            "FILE: metadata 'x': is not valid JSON at byte 3");
}

TEST(ParseJson, DepthIsLimited) {
  EXPECT_EQ(problem_of(nested(64)), "");
  EXPECT_EQ(parse_json(nested(64), "f").dump(), nested(64));
  EXPECT_EQ(problem_of(nested(65)), "is JSON nested more than 64 deep");
  EXPECT_EQ(problem_of(nested(3), {.depth = 2}), "is JSON nested more than 2 deep");
  EXPECT_EQ(problem_of("[[1],[2],[3]]", {.depth = 2}), "");
}

TEST(ParseJson, AMillionBracketsAreAnError) {
  for (const char* const opening : {"[", "{\"a\":"}) {
    std::string text;
    for (int64_t i = 0; i < 1'000'000; ++i) {
      text += opening;
    }
    EXPECT_EQ(problem_of(text), "is JSON nested more than 64 deep");
  }
}

TEST(ParseJson, SizeIsLimited) {
  EXPECT_EQ(problem_of("[1,2,3]", {.bytes = 7}), "");
  EXPECT_EQ(problem_of("[1,2,3]", {.bytes = 6}), "has 7 bytes of JSON, above the limit of 6");
  EXPECT_EQ(problem_of(std::string((size_t{16} << 20) + 1, ' ')),
            "has 16777217 bytes of JSON, above the limit of 16777216");
}

// The library's own words are in no message.
TEST(ProblemWith, SaysWhatIsMissingOrOfAnotherType) {
  const auto problem = [](const std::function<void(const json&)>& ask) {
    try {
      ask(json{{"round", "seven"}, {"list", {1}}});
    } catch (const json::exception& error) {
      return problem_with(error);
    }
    return std::string();
  };
  EXPECT_EQ(problem([](const json& value) { value.at("phase\n"); }), "'phase\\n' is missing");
  EXPECT_EQ(problem([](const json& value) { value.at("round").get<int64_t>(); }),
            "a value must be number, but is string");
  EXPECT_EQ(problem([](const json& value) { value.at("list").get<std::string>(); }),
            "a value must be string, but is array");
  EXPECT_EQ(problem([](const json& value) { value.at("list").at(1); }), "array index 1 is out of range");
}

TEST(ParseList, TakesAListOfWhatItAsksForAndNothingElse) {
  const auto parse = [](std::string_view text) {
    return parse_list({.text = text, .rank = 2, .what = "its numbers"},
                      [](const json& entry) { return entry.is_number(); });
  };
  EXPECT_EQ(parse("[1, 2.5]"), (json{1, 2.5}));
  EXPECT_EQ(parse("[]"), json::array());
  for (const char* const text : {"", "1", "{}", "[1,\"2\"]", "[1"}) {
    EXPECT_EQ(error_message<c10::DistBackendError>([&] { parse(text); }),
              "rank 2 sent an invalid list of its numbers: " + in_quotes(text));
  }
}

// Invalid strings become the text that messages show. UTF-8 stays unchanged, including control characters.
TEST(WithUtf8Strings, ReplacesWhatJsonCannotHold) {
  const std::string long_path(5000, '\xe9');
  const json value =
      with_utf8_strings({{"a", "caf\xe9"}, {"b", {1, "caf\xc3\xa9\n", {{"c", "\xff"}}}}, {"d", long_path}});
  EXPECT_EQ(value["a"], "caf\\xe9");
  EXPECT_EQ(value["b"], (json{1, "caf\xc3\xa9\n", {{"c", "\\xff"}}}));
  EXPECT_EQ(value["d"].get<std::string>().size(), 4 * long_path.size()) << "whole";
  EXPECT_NO_THROW(value.dump());
  EXPECT_EQ(with_utf8_strings("\xff"), "\\xff");
  EXPECT_EQ(with_utf8_strings(7), 7);
}

}  // namespace
}  // namespace narrowcast::files
