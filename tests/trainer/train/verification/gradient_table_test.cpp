#include "trainer/train/verification/gradient_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace narrowcast::verification {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

HookReport report_of(const std::string& hook) {
  HookReport report;
  report.hook = hook;
  report.comparison = {.largest_absolute = 2.1e-5, .largest_relative = 0.5, .tolerance = 2.2e-5, .worst_share = 0.954};
  report.payload_bytes_sent = 3200;
  report.seconds = 0.0123;
  return report;
}

TEST(GradientTable, AlignsItsColumns) {
  EXPECT_EQ(gradient_table({report_of("none"), report_of("allreduce")}),
            "hook       max abs diff  max rel diff  tolerance  used  sent per rank      time  result\n"
            "none           2.10e-05      5.00e-01   2.20e-05   95%        3.20 kB  12300 us  pass\n"
            "allreduce      2.10e-05      5.00e-01   2.20e-05   95%        3.20 kB  12300 us  pass\n");
}

TEST(GradientTable, SaysWhyAHookFailed) {
  HookReport tolerance = report_of("a");
  tolerance.comparison.passed = false;
  EXPECT_THAT(gradient_table({tolerance}), EndsWith("  FAIL: tolerance\n"));
  HookReport replicas = report_of("b");
  replicas.replicas_identical = false;
  EXPECT_THAT(gradient_table({replicas}), EndsWith("  FAIL: ranks differ\n"));
  HookReport reference = report_of("c");
  reference.reference_passed = false;
  EXPECT_THAT(gradient_table({reference}), EndsWith("  FAIL: reference test's tolerance\n"));
}

TEST(GradientTable, HasAHeadingOnly) { EXPECT_THAT(gradient_table({}), HasSubstr("max abs diff")); }

}  // namespace
}  // namespace narrowcast::verification
