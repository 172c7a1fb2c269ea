#include "trainer/train/verification/hook_report.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

namespace narrowcast::verification {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

at::Tensor tensor(std::initializer_list<double> values) {
  return at::tensor(at::ArrayRef<double>(values.begin(), values.size()), at::kDouble);
}

TEST(Compare, MeasuresTheLargestOfEach) {
  const Comparison result = compare(tensor({1.0, 10.5, -2.0}), tensor({1.25, 10.0, -2.0}), tensor({0.5, 1.0, 0.25}));
  EXPECT_DOUBLE_EQ(result.largest_absolute, 0.5);
  EXPECT_DOUBLE_EQ(result.largest_relative, 0.2);
  EXPECT_DOUBLE_EQ(result.tolerance, 1.0);
  EXPECT_DOUBLE_EQ(result.worst_share, 0.5);
  EXPECT_TRUE(result.passed);
}

TEST(Compare, JudgesEachElementByItsOwnTolerance) {
  // The second difference is below the tolerance of the first element.
  const Comparison result = compare(tensor({0.0, 0.5}), tensor({0.0, 0.0}), tensor({1.0, 0.25}));
  EXPECT_FALSE(result.passed);
  EXPECT_DOUBLE_EQ(result.worst_share, 2);
}

TEST(Compare, AToleranceIsInclusiveAndMayBeZero) {
  EXPECT_TRUE(compare(tensor({0.5}), tensor({0.0}), tensor({0.5})).passed);
  EXPECT_TRUE(compare(tensor({0.5}), tensor({0.5}), tensor({0.0})).passed);
  const Comparison differs = compare(tensor({0.5}), tensor({0.25}), tensor({0.0}));
  EXPECT_FALSE(differs.passed);
  EXPECT_TRUE(std::isinf(differs.worst_share));
}

TEST(Compare, NotANumberNeverPasses) {
  const double nan = std::nan("");
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(compare(tensor({nan}), tensor({0.0}), tensor({1.0})).passed);
  EXPECT_FALSE(compare(tensor({nan}), tensor({nan}), tensor({1.0})).passed);
  EXPECT_FALSE(compare(tensor({infinity}), tensor({infinity}), tensor({1.0})).passed);
  EXPECT_FALSE(compare(tensor({0.0}), tensor({0.0}), tensor({nan})).passed);
  EXPECT_FALSE(compare(tensor({0.0}), tensor({1.0}), tensor({infinity})).passed);
  EXPECT_TRUE(std::isinf(compare(tensor({0.0, nan}), tensor({0.0, 0.0}), tensor({1.0, 1.0})).largest_absolute));
}

TEST(Compare, WorksInFloat64WhateverTheDtype) {
  const at::Tensor one = at::full({1}, 1.0F);
  const at::Tensor next = at::full({1}, std::nextafter(1.0F, 2.0F));
  EXPECT_DOUBLE_EQ(compare(next, one, tensor({1.0})).largest_absolute, std::ldexp(1, -23));
}

TEST(Compare, EmptyTensorsAreEqual) {
  const at::Tensor empty = at::zeros({0, 3}, at::kDouble);
  EXPECT_TRUE(compare(empty, empty, empty).passed);
}

TEST(Compare, RefusesDifferentShapes) {
  EXPECT_THROW(compare(tensor({1.0}), tensor({1.0, 2.0}), tensor({1.0})), c10::ValueError);
  EXPECT_THROW(compare(tensor({1.0}), tensor({1.0}), tensor({1.0, 2.0})), c10::ValueError);
}

TEST(WorseOf, TakesTheWorseOfEachPart) {
  const Comparison a = {.largest_absolute = 1, .largest_relative = 4, .tolerance = 5, .worst_share = 0.2};
  const Comparison b = {.largest_absolute = 2, .largest_relative = 3, .worst_share = 1.5, .passed = false};
  const Comparison result = worse_of(a, b);
  EXPECT_EQ(result.largest_absolute, 2);
  EXPECT_EQ(result.largest_relative, 4);
  EXPECT_EQ(result.tolerance, 5);
  EXPECT_EQ(result.worst_share, 1.5);
  EXPECT_FALSE(result.passed);
}

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
