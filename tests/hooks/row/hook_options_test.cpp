#include <narrowcast/hook_options.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "hooks/row/hook_options.h"
#include "hooks/table/hook_table.h"

namespace narrowcast::hooks {
namespace {

using ::testing::ElementsAre;
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
                              .auto_bits = 6}}),
              ElementsAre("hook_format: int4_b32", "stochastic_rounding: seed 7", "error_feedback: true",
                          "exempt_one_dimensional: true", "levels: two", "node_size: 2", "link_gbit: 2.5",
                          "link_us: 50", "auto_bits: 6"));
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
