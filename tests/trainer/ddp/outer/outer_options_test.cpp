#include <narrowcast/outer_options.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/error_message.h"

namespace narrowcast {
namespace {

using testing::error_message;
using ::testing::HasSubstr;

TEST(OuterOptions, EachWrongValueIsNamedInOneLine) {
  struct Case {
    OuterOptions options;
    std::string message;
  };
  const auto diloco = [] { return OuterOptions().sync_every(12).optimizer(OuterKind::kNesterov); };
  const std::vector<Case> cases = {
      {OuterOptions().sync_every(0), "sync_every: must be at least 1, but is 0"},
      {OuterOptions().fragments(0), "fragments: must be at least 1, but is 0"},
      {OuterOptions().overlap_steps(-1), "overlap_steps: must be at least 0, but is -1"},
      {OuterOptions().warmup_steps(-1), "outer_warmup: must be at least 0, but is -1"},
      {diloco().fragments(5), "sync_every: must be a multiple of fragments (5), but is 12"},
      {diloco().fragments(3).overlap_steps(4), "overlap_steps: must be less than sync_every / fragments (4)"},
      {diloco().first_exchange(0), "first_exchange: must be in 1..sync_every (12), but is 0"},
      {diloco().first_exchange(13), "first_exchange: must be in 1..sync_every (12), but is 13"},
      {diloco().mix(-0.5), "outer_mix: must be in 0..1, but is -0.5"},
      {diloco().mix(1.5), "outer_mix: must be in 0..1, but is 1.5"},
      {diloco().learning_rate(0), "outer_learning_rate: must be positive, but is 0"},
      {diloco().momentum(0), "outer_momentum: must be positive with the outer optimizer nesterov"},
      {diloco().momentum(1), "outer_momentum: must be in 0..1, below 1, but is 1"},
      {OuterOptions().learning_rate(1), "outer_learning_rate: 1 has no effect with the outer optimizer average"},
      {OuterOptions().momentum(0.9), "outer_momentum: 0.9 has no effect with the outer optimizer average"},
      {diloco().wire({}), "outer_format: must be given"},
      {diloco().wire({.format = WireFormat::kFp32, .error_feedback = true}), "outer_error_feedback: has no effect"},
      {diloco().wire({.format = WireFormat::kFp32, .stochastic_rounding_seed = 1}), "stochastic_rounding: has no"},
      {diloco().wire({.format = WireFormat::kInt8B128, .exempt_one_dimensional = true}), "exempt_one_dimensional: has"},
      {diloco().wire({.format = WireFormat::kInt8B128, .auto_bits = 8}), "auto_bits: 8 has no effect"},
      {diloco().wire({.format = WireFormat::kInt8B128, .node_size = 0}), "node_size: must be at least 1"},
  };
  for (const Case& wrong : cases) {
    const std::string message = error_message<c10::ValueError>([&] { wrong.options.validate(); });
    EXPECT_THAT(message, HasSubstr(wrong.message));
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
}

TEST(OuterOptions, WhatIsLeftOpenIsAsThePapersHaveIt) {
  EXPECT_EQ(OuterOptions().effective_learning_rate(), 1);
  EXPECT_EQ(OuterOptions().effective_momentum(), 0);
  const OuterOptions diloco = OuterOptions().sync_every(30).optimizer(OuterKind::kNesterov).fragments(3);
  EXPECT_EQ(diloco.effective_learning_rate(), 0.7);
  EXPECT_EQ(diloco.effective_momentum(), 0.9);
  EXPECT_EQ(diloco.effective_first_exchange(), 10);
}

TEST(OuterOptions, FragmentsTakeTurns) {
  const auto due = [](const OuterOptions& options, int64_t steps) {
    std::string text;
    for (int64_t step = 1; step <= steps; ++step) {
      const auto fragment = options.fragment_due(step);
      text += fragment ? std::to_string(*fragment) : ".";
    }
    return text;
  };
  EXPECT_EQ(due(OuterOptions().sync_every(1), 5), "00000");
  EXPECT_EQ(due(OuterOptions().sync_every(4), 12), "...0...0...0");
  EXPECT_EQ(due(OuterOptions().sync_every(4).first_exchange(1), 12), "0...0...0...");
  EXPECT_EQ(due(OuterOptions().sync_every(6).fragments(3), 14), ".0.1.2.0.1.2.0");
}

TEST(OuterOptions, KindsHaveNames) {
  for (const OuterKind kind : {OuterKind::kAverage, OuterKind::kSgd, OuterKind::kNesterov}) {
    EXPECT_EQ(parse_outer_kind(to_string(kind)), kind);
  }
  EXPECT_THAT(error_message<c10::ValueError>([] { parse_outer_kind("adam"); }),
              HasSubstr("outer_optimizer: must be average, sgd or nesterov, but is 'adam'"));
}

}  // namespace
}  // namespace narrowcast
