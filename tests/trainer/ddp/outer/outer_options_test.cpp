#include <narrowcast/outer_options.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <variant>
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
  const auto timed = [] { return OuterOptions().sync_seconds(0.5); };
  const auto sparse = [] { return OuterOptions().wire({.format = WireFormat::kTop2P15, .error_feedback = true}); };
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
      {diloco().wire({.format = WireFormat::kTop2P15}),
       "outer_format: top2_15 sends only 1.5% of the elements. It needs outer_error_feedback"},
      {diloco().wire({.format = WireFormat::kTop2P31, .stochastic_rounding_seed = 1, .error_feedback = true}),
       "stochastic_rounding: has no effect with the format top2_31"},
      {diloco().error_decay(0.5), "outer_error_decay: 0.5 has no effect without outer_error_feedback"},
      {sparse().error_decay(0), "outer_error_decay: must be above 0 and at most 1, but is 0"},
      {sparse().error_decay(1.5), "outer_error_decay: must be above 0 and at most 1, but is 1.5"},
      {sparse().optimizer(OuterKind::kNesterov),
       "outer_momentum: must be 0 with the outer format top2_15, in which outer_error_decay takes the place of "
       "momentum, but is 0.9; use the outer optimizer sgd without momentum"},
      {sparse().optimizer(OuterKind::kSgd).momentum(0.5), "momentum, but is 0.5; use the outer optimizer sgd"},
      {sparse().mix(0.5), "outer_mix: must be 0 with the outer format top2_15, but is 0.5"},
      {diloco().wire({.format = WireFormat::kInt8B128, .exempt_one_dimensional = true}), "exempt_one_dimensional: has"},
      {diloco().wire({.format = WireFormat::kInt8B128, .auto_bits = 8}), "auto_bits: 8 has no effect"},
      {diloco().wire({.format = WireFormat::kInt8B128, .node_size = 0}), "node_size: must be at least 1"},
      {timed().sync_seconds(0), "sync_seconds: must be positive, but is 0"},
      {timed().sync_seconds(-1), "sync_seconds: must be positive, but is -1"},
      {timed().sync_seconds(std::numeric_limits<double>::infinity()), "sync_seconds: must be positive, but is inf"},
      {timed().sync_seconds(std::numeric_limits<double>::quiet_NaN()), "sync_seconds: must be positive, but is nan"},
      {timed().sync_every(30), "sync_every: 30 has no effect with sync_seconds"},
      {timed().fragments(2), "fragments: 2 has no effect with sync_seconds"},
      {timed().overlap_steps(1), "overlap_steps: 1 has no effect with sync_seconds"},
      {timed().mix(0.5), "outer_mix: 0.5 has no effect with sync_seconds"},
      {timed().first_exchange(1), "first_exchange: 1 has no effect with sync_seconds"},
      {diloco().clock([] { return 0.0; }), "clock: has no effect without sync_seconds"},
  };
  for (const Case& wrong : cases) {
    const std::string message = error_message<c10::ValueError>([&] { wrong.options.validate(); });
    EXPECT_THAT(message, HasSubstr(wrong.message));
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
}

TEST(OuterOptions, SparseFormatsTakeEachStepWithoutMomentum) {
  for (const OuterKind kind : {OuterKind::kAverage, OuterKind::kSgd}) {
    OuterOptions().optimizer(kind).wire({.format = WireFormat::kTop2P31, .error_feedback = true}).validate();
  }
}

TEST(OuterOptions, WhatIsLeftOpenIsAsThePapersHaveIt) {
  EXPECT_EQ(OuterOptions().effective_learning_rate(), 1);
  EXPECT_EQ(OuterOptions().effective_momentum(), 0);
  const OuterOptions diloco = OuterOptions().sync_every(30).optimizer(OuterKind::kNesterov).fragments(3);
  EXPECT_EQ(diloco.effective_learning_rate(), 0.7);
  EXPECT_EQ(diloco.effective_momentum(), 0.9);
  EXPECT_EQ(diloco.effective_first_exchange(), 10);
  EXPECT_EQ(diloco.effective_error_decay(), 1);
  EXPECT_EQ(OuterOptions().wire({.format = WireFormat::kTop2P15}).effective_error_decay(), 0.95);
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
  EXPECT_EQ(due(OuterOptions().sync_seconds(6), 3), "...") << "clocks decide";
}

// A value of each option that is not its default.
const std::vector<std::pair<std::string, hooks::OptionValue>> kOthers = {{"sync_every", int64_t{12}},
                                                                         {"sync_seconds", 2.5},
                                                                         {"outer_quorum", int64_t{3}},
                                                                         {"outer_grace_seconds", 1.5},
                                                                         {"outer_optimizer", std::string("nesterov")},
                                                                         {"outer_learning_rate", 0.5},
                                                                         {"outer_momentum", 0.25},
                                                                         {"fragments", int64_t{3}},
                                                                         {"overlap_steps", int64_t{2}},
                                                                         {"outer_mix", 0.75},
                                                                         {"outer_warmup", int64_t{7}},
                                                                         {"outer_format", std::string("int8_b128")},
                                                                         {"outer_error_feedback", true},
                                                                         {"outer_error_decay", 0.5},
                                                                         {"stochastic_rounding", int64_t{9}},
                                                                         {"levels", std::string("two")},
                                                                         {"node_size", int64_t{2}},
                                                                         {"link_gbit", 3.0},
                                                                         {"link_us", 40.0},
                                                                         {"connections", int64_t{4}}};

TEST(OuterOptions, AreSetAndNamedByTheSameNames) {
  OuterOptions options;
  std::vector<std::string> names;
  for (const hooks::NamedOption& option : options.named()) names.push_back(option.name);
  std::vector<std::string> set;
  for (const auto& [name, value] : kOthers) {
    options.set(name, value);
    set.push_back(name);
  }
  EXPECT_EQ(names, set);
  for (size_t i = 0; i < kOthers.size(); ++i) {
    const hooks::NamedOption option = options.named()[i];
    EXPECT_TRUE(option.is_given) << option.name;
    if (option.name == "sync_every") {
      EXPECT_TRUE(std::holds_alternative<std::monostate>(option.value)) << "sync_seconds takes its place";
      continue;
    }
    const std::string text = hooks::text_of(kOthers[i].second);
    EXPECT_EQ(hooks::text_of(option.value), option.name == "stochastic_rounding" ? "seed " + text : text);
  }
  options.set("first_exchange", int64_t{5});
  EXPECT_EQ(options.first_exchange(), 5);
  for (const std::string& name : names) options.set(name, {});
  for (const hooks::NamedOption& option : options.named()) EXPECT_FALSE(option.is_given) << option.name;
  options.set("first_exchange", {});
  EXPECT_FALSE(options.first_exchange().has_value());
}

TEST(OuterOptions, AreRefusedByName) {
  OuterOptions options;
  EXPECT_EQ(
      error_message<c10::ValueError>([&] { options.set("hook_format", std::string("fp32")); }),
      "unknown option 'hook_format'; known: sync_every, sync_seconds, outer_quorum, outer_grace_seconds, "
      "outer_optimizer, "
      "outer_learning_rate, outer_momentum, fragments, overlap_steps, outer_mix, outer_warmup, outer_format, "
      "outer_error_feedback, "
      "outer_error_decay, stochastic_rounding, levels, node_size, link_gbit, link_us, connections, first_exchange");
  EXPECT_EQ(error_message<c10::TypeError>([&] { options.set("outer_format", int64_t{5}); }),
            "outer_format: must be str, but is int 5");
  EXPECT_THAT(error_message<c10::ValueError>([&] { options.set("outer_format", std::string("int9")); }),
              ::testing::StartsWith("outer_format: "));
  EXPECT_EQ(error_message<c10::TypeError>([&] { options.set("link_gbit", true); }),
            "link_gbit: must be float, but is bool true");
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
