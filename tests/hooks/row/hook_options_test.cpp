#include <narrowcast/hook_options.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "hooks/row/hook_options.h"
#include "hooks/table/hook_table.h"
#include "tests/support/error_message.h"

namespace narrowcast::hooks {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> given(const HookOptions& options) {
  std::vector<std::string> texts;
  for (const NamedOption& option : named_options(options)) {
    if (option.is_given) texts.push_back(option.name + ": " + text_of(option.value));
  }
  return texts;
}

TEST(NamedOptions, SayWhatIsNotAsItIsByItself) {
  EXPECT_THAT(given({}), IsEmpty());
  EXPECT_THAT(given({.process_group = {},
                     .wire = {.format = WireFormat::kInt4B32,
                              .stochastic_rounding_seed = 7,
                              .error_feedback = true,
                              .exempt_one_dimensional = true,
                              .levels = Levels::kTwo,
                              .node_size = 2,
                              .link_gbit = 2.5,
                              .link_us = 50,
                              .connections = 4,
                              .auto_bits = 6}}),
              ElementsAre("hook_format: int4_b32", "stochastic_rounding: seed 7", "error_feedback: true",
                          "exempt_one_dimensional: true", "levels: two", "node_size: 2", "link_gbit: 2.5",
                          "link_us: 50", "connections: 4", "auto_bits: 6"));
  EXPECT_THAT(given({.process_group = {}, .channel_size = 7, .local = {.start = 3, .group_size = 1, .hook = "int8"}}),
              ElementsAre("channel_size: 7", "outer_warmup: 3", "local_group: none", "local_hook: int8"));
  EXPECT_THAT(given({.process_group = {},
                     .power_sgd = {.rank = 2, .warm_start = false, .epsilon = 0.5, .wire = WireFormat::kBf16}}),
              ElementsAre("power_sgd_rank: 2", "power_sgd_warm_start: false", "power_sgd_epsilon: 0.5",
                          "power_sgd_wire: bf16"));
}

TEST(NamedOptions, HaveATextWithoutAValue) {
  const auto text = [](const std::string& name) {
    const std::vector<NamedOption> all = named_options({});
    return text_of(std::ranges::find(all, name, &NamedOption::name)->value);
  };
  EXPECT_EQ(text("hook_format"), "none");
  EXPECT_EQ(text("stochastic_rounding"), "false") << "no seed: to the nearest";
  EXPECT_EQ(text("local_group"), "node");
  EXPECT_EQ(text("power_sgd_rank"), "none");
}

TEST(SetOption, ReadsConnectionsAsANumberOrAuto) {
  HookOptions options;
  set_option(options, "connections", std::string("auto"));
  EXPECT_EQ(options.wire.connections, kAutoConnections);
  EXPECT_THAT(given(options), ElementsAre("connections: auto"));
  set_option(options, "connections", int64_t{4});
  EXPECT_EQ(options.wire.connections, 4);
  EXPECT_EQ(testing::error_message<c10::ValueError>([&] { set_option(options, "connections", std::string("all")); }),
            "connections: must be a number or \"auto\", but is \"all\"");
  EXPECT_THROW(set_option(options, "connections", 4.5), c10::TypeError);
  EXPECT_THROW(set_option(options, "connections", std::numeric_limits<int64_t>::min()), c10::ValueError);
  std::optional<int64_t> read;
  EXPECT_FALSE(parse_connections(std::to_string(std::numeric_limits<int64_t>::min()), read)) << "it means auto";
}

TEST(SetOption, ReadsWhatNamedOptionsGive) {
  HookOptions wanted{.process_group = {},
                     .wire = {.format = WireFormat::kInt4B32,
                              .error_feedback = true,
                              .exempt_one_dimensional = true,
                              .levels = Levels::kTwo,
                              .node_size = 2,
                              .link_gbit = 2.5,
                              .link_us = 50,
                              .connections = 4,
                              .auto_bits = 6},
                     .channel_size = 7,
                     .local = {.start = 3, .group_size = 1, .hook = "int8"},
                     .power_sgd = {.rank = 2,
                                   .start = 5,
                                   .min_rate = 3,
                                   .error_feedback = false,
                                   .warm_start = false,
                                   .epsilon = 0.5,
                                   .seed = 9,
                                   .batch = true,
                                   .alternate = true,
                                   .memory = PowerSgdMemory::kAveraged,
                                   .wire = WireFormat::kBf16}};
  HookOptions read;
  for (const NamedOption& option : named_options(wanted)) set_option(read, option.name, option.value);
  EXPECT_EQ(read.wire, wanted.wire);
  EXPECT_EQ(read.channel_size, wanted.channel_size);
  EXPECT_EQ(read.local, wanted.local);
  EXPECT_EQ(read.power_sgd, wanted.power_sgd);
  // No value is the default, and a seed and a size are numbers.
  for (const NamedOption& option : named_options(wanted)) set_option(read, option.name, {});
  EXPECT_THAT(given(read), IsEmpty());
  set_option(read, "stochastic_rounding", int64_t{7});
  set_option(read, "local_group", int64_t{4});
  set_option(read, "link_gbit", int64_t{10});
  EXPECT_THAT(given(read), ElementsAre("stochastic_rounding: seed 7", "link_gbit: 10", "local_group: 4"));
}

TEST(SetOption, NamesTheOptionThatIsWrong) {
  HookOptions options;
  const auto set = [&](const std::string& name, const OptionValue& value) { set_option(options, name, value); };
  EXPECT_THAT(testing::error_message<c10::ValueError>([&] { set("format", std::string("int8")); }),
              AllOf(HasSubstr("unknown option 'format'; known: hook_format"), HasSubstr("power_sgd_wire")));
  EXPECT_EQ(testing::error_message<c10::TypeError>([&] { set("error_feedback", int64_t{1}); }),
            "error_feedback: must be bool, but is int 1");
  EXPECT_EQ(testing::error_message<c10::TypeError>([&] { set("node_size", 2.0); }),
            "node_size: must be int, but is float 2");
  EXPECT_EQ(testing::error_message<c10::TypeError>([&] { set("link_us", std::string("50")); }),
            "link_us: must be float, but is str 50");
  EXPECT_EQ(testing::error_message<c10::TypeError>([&] { set("levels", true); }),
            "levels: must be str, but is bool true");
  EXPECT_EQ(testing::error_message<c10::TypeError>([&] { set("stochastic_rounding", true); }),
            "stochastic_rounding: must be int (the seed) or False, but is bool true");
  EXPECT_THAT(testing::error_message<c10::ValueError>([&] { set("power_sgd_wire", std::string("int9")); }),
              AllOf(HasSubstr("power_sgd_wire: "), HasSubstr("int9")));
  EXPECT_THAT(testing::error_message<c10::ValueError>([&] { set("local_group", std::string("all")); }),
              HasSubstr("local_group: must be a number, \"node\" or \"none\", but is \"all\""));
  EXPECT_THAT(given(options), IsEmpty());
}

TEST(LocalGroup, IsReadAsItIsTold) {
  for (const std::optional<int64_t>& told :
       {std::optional<int64_t>(), std::optional<int64_t>(1), std::optional<int64_t>(8)}) {
    std::optional<int64_t> read = 5;
    EXPECT_TRUE(parse_local_group(local_group_text(told), read));
    EXPECT_EQ(read, told);
  }
  std::optional<int64_t> read;
  EXPECT_TRUE(parse_local_group("1", read));
  EXPECT_EQ(read, 1) << "none in other words";
  for (const char* text : {"", "all", "2x", "2.5", "99999999999999999999"}) {
    EXPECT_FALSE(parse_local_group(text, read)) << text;
  }
}

}  // namespace
}  // namespace narrowcast::hooks
