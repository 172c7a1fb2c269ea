#include "trainer/launcher/job/line_prefix.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_message.h"

namespace narrowcast::launcher {
namespace {

using ::testing::HasSubstr;

const LineVariables kVariables = {.role_name = "trainer", .rank = "5", .local_rank = "1", .hostname = "alpha"};

std::string expanded(const std::string& text) { return expand_line_prefix("--f", text, kVariables); }

std::string template_error(const std::string& text) {
  return testing::error_message<c10::ValueError>([&] { expanded(text); });
}

TEST(LinePrefix, ReplacesVariablesAsTorchrunDoes) {
  EXPECT_EQ(expanded(kDefaultLinePrefix), "[5]: ");
  EXPECT_EQ(expanded("[${role_name}${local_rank}]:"), "[trainer1]:");
  EXPECT_EQ(expanded("$hostname $rank|"), "alpha 5|");
  EXPECT_EQ(expanded("${rank}0$$rank "), "50$rank ");
  EXPECT_EQ(expanded(""), "");
  EXPECT_EQ(expanded("}{ {rank}"), "}{ {rank}");
}

TEST(LinePrefix, NamesWhatItDoesNotKnow) {
  EXPECT_EQ(
      template_error("[${host}]"),
      "--f=[${host}]: '${host}' is not a variable; write ${rank}, ${local_rank}, ${role_name} or ${hostname}, and $$ "
      "for a dollar sign");
  EXPECT_THAT(template_error("a $ranks"), HasSubstr("'$ranks' is not a variable"));
  EXPECT_THAT(template_error("5$"), HasSubstr("'$' is not a variable"));
  EXPECT_THAT(template_error("${rank"), HasSubstr("'$' is not a variable"));
  EXPECT_THAT(template_error("${}"), HasSubstr("'$' is not a variable"));
  EXPECT_EQ(template_error("a\nb"), "--f=a\\nb: must be one line");
}

}  // namespace
}  // namespace narrowcast::launcher
