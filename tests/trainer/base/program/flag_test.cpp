#include "trainer/base/program/flag.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/support/error_message.h"

namespace narrowcast::program {
namespace {

// The error of a flag "speed" whose variable has that setter, for the value "x".
std::string error_of(const decltype(Variable::set)& set) {
  const Flag flag{.name = "speed", .variable = {.type = "number", .set = set}};
  return testing::error_message<c10::ValueError>([&] { flag.set("x"); });
}

TEST(Flag, SetsItsVariable) {
  std::string value;
  const Flag flag{.name = "speed", .variable = {.type = "text", .set = [&](const std::string& text, std::string&) {
                                                  value = text;
                                                  return true;
                                                }}};
  flag.set("fast");
  EXPECT_EQ(value, "fast");
}

TEST(Flag, NamesItselfItsValueAndTheReason) {
  EXPECT_EQ(error_of([](const std::string&, std::string&) { return false; }),
            "--speed=x: not a valid value of type number");
  EXPECT_EQ(error_of([](const std::string&, std::string& reason) {
              reason = "too slow";
              return false;
            }),
            "--speed=x: too slow");
  EXPECT_EQ(error_of([](const std::string&, std::string&) -> bool { TORCH_CHECK_VALUE(false, "no such thing"); }),
            "--speed=x: no such thing");
  EXPECT_EQ(error_of([](const std::string&, std::string&) -> bool { TORCH_CHECK_VALUE(false, "speed: is x"); }),
            "speed: is x")
      << "an error that begins with the name needs no second one";
}

TEST(Shown, IsPrintableAndBounded) {
  EXPECT_EQ(shown("a value"), "a value");
  EXPECT_EQ(shown("a\nb").find('\n'), std::string::npos);
  EXPECT_LT(shown(std::string(100000, 'x')).size(), 2000U);
}

// sample_program.cpp has the flag of Abseil.
TEST(WithAbseilFlags, HasOwnFlagsAndThoseOfAbseil) {
  const std::map<std::string, Flag> flags = with_abseil_flags({{.name = "speed", .variable = {}, .help = "How fast."}});
  EXPECT_EQ(flags.at("speed").help, "How fast.");
  EXPECT_TRUE(flags.contains("sample_steps"));
  EXPECT_THROW(with_abseil_flags({{.name = "sample_steps", .variable = {}}}), c10::Error);
}

}  // namespace
}  // namespace narrowcast::program
