#include "hooks/row/hook_row.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include <narrowcast/wire_format.h>
#include "hooks/row/hook_options.h"
#include "hooks/table/hook_table.h"

namespace narrowcast::hooks {
namespace {

HookRow row_that_takes(std::set<OptionKind> kinds) {
  HookRow row;
  row.name = "row";
  row.options = std::move(kinds);
  return row;
}

TEST(FilledIn, GivesTheDefaultsOfTheRow) {
  HookRow row = row_that_takes({OptionKind::kChannels, OptionKind::kPowerSgd});
  row.format = WireFormat::kInt4B32;
  row.power_sgd_rank = 3;
  const HookOptions options = filled_in(row, {});
  EXPECT_EQ(options.wire.format, WireFormat::kInt4B32);
  EXPECT_EQ(options.channel_size, kDefaultChannelSize);
  EXPECT_EQ(options.power_sgd.rank, 3);
}

TEST(FilledIn, KeepsWhatIsGiven) {
  HookRow row = row_that_takes({OptionKind::kChannels, OptionKind::kPowerSgd});
  row.format = WireFormat::kInt4B32;
  const HookOptions options = filled_in(row, {.wire = {.format = WireFormat::kBf16, .error_feedback = true},
                                              .channel_size = 7,
                                              .power_sgd = {.rank = 5, .start = 2}});
  EXPECT_EQ(options.wire, (WireOptions{.format = WireFormat::kBf16, .error_feedback = true}));
  EXPECT_EQ(options.channel_size, 7);
  EXPECT_EQ(options.power_sgd, (PowerSgdOptions{.rank = 5, .start = 2}));
}

TEST(FilledIn, RemovesWhatTheHookDoesNotHave) {
  const HookOptions options = filled_in(
      row_that_takes({}), {.wire = {.format = WireFormat::kBf16}, .channel_size = 7, .power_sgd = {.rank = 5}});
  EXPECT_FALSE(options.wire.format.has_value());
  EXPECT_FALSE(options.channel_size.has_value());
  EXPECT_FALSE(options.power_sgd.rank.has_value());
}

class SilentHook final : public TableHook {
 public:
  using TableHook::TableHook;
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& /*bucket*/) override { return nullptr; }
};

TEST(TableHook, HasTheNatureOfItsRow) {
  for (const bool keeps : {false, true}) {
    HookRow row = row_that_takes({});
    row.keeps_replicas_equal = keeps;
    const SilentHook hook(row);
    EXPECT_EQ(hook.name(), "row");
    EXPECT_EQ(hook.keeps_replicas_equal(), keeps);
  }
}

TEST(SupportedWireOptions, AreThoseOfTheKindsThatTheRowTakes) {
  const WireOptions all{.format = WireFormat::kBf16,
                        .stochastic_rounding_seed = 7,
                        .error_feedback = true,
                        .exempt_one_dimensional = true,
                        .levels = Levels::kTwo,
                        .node_size = 2,
                        .link_gbit = 10,
                        .link_us = 50,
                        .connections = 4,
                        .auto_bits = 4};
  EXPECT_EQ(supported_wire_options(hook_row("allreduce"), all), WireOptions{});
  EXPECT_EQ(supported_wire_options(hook_row("power_sgd"), all),
            (WireOptions{.levels = Levels::kTwo, .node_size = 2, .link_gbit = 10, .link_us = 50, .connections = 4}));
  WireOptions expected = all;
  expected.format.reset();
  EXPECT_EQ(supported_wire_options(hook_row("auto"), all), expected);
  expected.auto_bits.reset();
  EXPECT_EQ(supported_wire_options(hook_row("int8"), all), expected);
  for (const NamedOption& option : named_options({nullptr, all})) {
    const bool is_of_wire = option.kind != OptionKind::kChannels && option.kind != OptionKind::kLocal &&
                            option.kind != OptionKind::kPowerSgd && option.kind != OptionKind::kPowerSgdOfMatrices;
    EXPECT_EQ(is_set(all, option.kind), is_of_wire) << option.name;
    EXPECT_FALSE(is_set({}, option.kind)) << option.name;
  }
}

}  // namespace
}  // namespace narrowcast::hooks
