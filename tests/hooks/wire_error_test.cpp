#include "hooks/wire_error.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include <narrowcast/wire_format.h>

namespace narrowcast::hooks {
namespace {

void expect_format(WireFormat format, const FormatError& expected) {
  const FormatError error = format_error(format);
  EXPECT_EQ(error.block, expected.block) << format;
  EXPECT_EQ(error.greatest, expected.greatest) << format;
  EXPECT_EQ(error.relative, expected.relative) << format;
  EXPECT_EQ(error.steps, expected.steps) << format;
  EXPECT_EQ(error.absolute, expected.absolute) << format;
}

TEST(FormatError, IsWhatTheDocumentSaysOfEveryFormat) {
  expect_format(WireFormat::kInt8B32, {.block = 32, .greatest = 127, .steps = 0.5});
  expect_format(WireFormat::kInt8B128, {.block = 128, .greatest = 127, .steps = 0.5});
  expect_format(WireFormat::kInt8B256, {.block = 256, .greatest = 127, .steps = 0.5});
  expect_format(WireFormat::kInt6B32, {.block = 32, .greatest = 31, .steps = 0.5});
  expect_format(WireFormat::kInt4B32, {.block = 32, .greatest = 7, .steps = 0.5});
  expect_format(WireFormat::kFp8E4M3B32,
                {.block = 32, .greatest = 448, .relative = std::ldexp(1, -4), .steps = std::ldexp(1, -10)});
  expect_format(WireFormat::kBf16, {.relative = std::ldexp(1, -8), .absolute = std::ldexp(1, -134)});
  expect_format(WireFormat::kFp16, {.relative = std::ldexp(1, -11), .absolute = std::ldexp(1, -25)});
  expect_format(WireFormat::kFp32, {});
}

TEST(FormatError, IsNotThereForANumberThatIsNoFormat) {
  EXPECT_THROW(format_error(static_cast<WireFormat>(99)), std::invalid_argument);
  EXPECT_THROW(wire_error(static_cast<WireFormat>(99), {}, at::ones({8}, at::kDouble), 2), std::invalid_argument);
}

TEST(WireError, IsNothingWithOneRank) {
  const HopErrors errors = wire_error(WireFormat::kInt4B32, {}, at::ones({8}, at::kDouble), 1);
  EXPECT_EQ(errors.first.sum().item<double>(), 0);
  EXPECT_EQ(errors.second.sum().item<double>(), 0);
}

}  // namespace
}  // namespace narrowcast::hooks
