#include "hooks/table/hook_table.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <narrowcast/hooks.h>
#include <narrowcast/wire_format.h>
#include "hooks/row/hook_options.h"
#include "ops/codec/wire_format.h"
#include "tests/support/added_hook_row.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::hooks {
namespace {

using codec::wire::code_bits;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

int64_t bytes_of(const std::string& hook, const GradientSizes& gradients, int64_t world_size,
                 const HookOptions& options = {}) {
  return hook_row(hook).payload_bytes(gradients, node::NodeLayout::flat(world_size), options);
}

TEST(HookRow, SaysThePayloadByTheFormulas) {
  EXPECT_EQ(bytes_of("none", {1024}, 4), 2 * 3 * 1024);  // 2 (W - 1) / W * 4 N
  EXPECT_EQ(bytes_of("allreduce", {1024, 0, sizeof(double)}, 4), 2 * 3 * 2 * 1024);
  EXPECT_EQ(bytes_of("fp16_compress", {1024}, 4), 3 * 1024);
  EXPECT_EQ(bytes_of("bf16_compress", {1024, 0, sizeof(double)}, 4), 3 * 1024);
  EXPECT_EQ(bytes_of("quantize_per_tensor", {1024}, 4), 3 * 1024);
  EXPECT_EQ(bytes_of("int8", {1024}, 4), 3 * (1024 + 2 * 8) / 2);
  EXPECT_EQ(bytes_of("noop", {1024}, 4), 0);
  for (const HookRow& row : hook_rows()) {
    EXPECT_EQ(bytes_of(row.name, {1000}, 1), 0) << row.name;
  }
}

TEST(HookRow, SaysThePayloadWithTheOptions) {
  EXPECT_EQ(bytes_of("quantize_per_channel", {1024}, 4), 3 * (1024 + 2 * 8));
  EXPECT_EQ(bytes_of("quantize_per_channel", {1025}, 4), 3 * (1025 + 3 * 8)) << "the last channel has one element";
  EXPECT_EQ(bytes_of("quantize_per_channel", {1025}, 4, {nullptr, {}, 100}), 3 * (1025 + 11 * 8));
  EXPECT_EQ(bytes_of("quantize_per_channel", {1025}, 4, {nullptr, {}, 1}), 3 * (1025 + 1025 * 8));
  EXPECT_EQ(bytes_of("quantize_per_channel", {1025}, 4, {nullptr, {}, 1 << 30}), 3 * (1025 + 8));
  EXPECT_EQ(bytes_of("int4", {1024, 64}, 4, {nullptr, {.exempt_one_dimensional = true}}),
            3 * (512 + 2 * 32 + 4 * 64) / 2);
  EXPECT_EQ(bytes_of("quantized_allreduce", {1024}, 4, {nullptr, {.format = WireFormat::kBf16}}),
            bytes_of("bf16_compress", {1024}, 4));
}

TEST(HookRow, HasTheTolerancesOfPyTorchsTest) {
  for (const char* hook : {"none", "allreduce", "noop"}) {
    EXPECT_EQ(hook_row(hook).reference_tolerance->absolute, 0) << hook;
  }
  for (const char* hook : {"fp16_compress", "bf16_compress", "quantize_per_tensor", "quantize_per_channel"}) {
    EXPECT_EQ(hook_row(hook).reference_tolerance->relative, 1e-5) << hook;
    EXPECT_EQ(hook_row(hook).reference_tolerance->absolute, 1e-4) << hook;
  }
  for (const HookRow& row : hook_rows()) {  // PyTorch has no wire formats.
    EXPECT_FALSE(row.takes(OptionKind::kRounding) && row.reference_tolerance.has_value()) << row.name;
  }
}

TEST(HookRow, SaysWhatItsHookSays) {
  testing::run_ranks(1, [](int64_t, const Group& group) {
    for (const HookRow& row : hook_rows()) {
      EXPECT_EQ(row.make == nullptr, row.name == "none");
      if (row.make) {
        const auto hook = row.make(row, {group});
        EXPECT_EQ(hook->name(), row.name);
        EXPECT_EQ(hook->keeps_replicas_equal(), row.keeps_replicas_equal) << row.name;
      }
    }
  });
}

TEST(HookRow, IsThereForKnownNamesOnly) {
  EXPECT_THAT(testing::error_message<c10::ValueError>([] { hook_row("quantise"); }),
              AllOf(HasSubstr("hook: unknown name 'quantise'"), HasSubstr("known: none, allreduce, fp16_compress")));
  EXPECT_THROW(takes_channel_size("quantise"), c10::ValueError);
  EXPECT_THROW(wire_format_of("quantise"), c10::ValueError);
}

TEST(HookNamesThatTake, JoinsTheNamesOfTheRowsThatTakeThem) {
  EXPECT_EQ(hook_names_that_take(OptionKind::kFormat), "quantized_allreduce");
  EXPECT_EQ(hook_names_that_take(OptionKind::kChannels), "quantize_per_channel");
  EXPECT_EQ(hook_names_that_take(OptionKind::kPowerSgd),
            "power_sgd, power_sgd_rank2, batched_power_sgd, batched_power_sgd_rank2");
  EXPECT_THAT(hook_names_that_take(OptionKind::kLevels),
              AllOf(HasSubstr("quantized_allreduce, int8"), HasSubstr("fp8"), HasSubstr("auto, power_sgd")));
}

TEST(HookRow, TakesAllOptionsOfAKindOrNone) {
  EXPECT_TRUE(hook_row("int8").takes(OptionKind::kLink));
  EXPECT_FALSE(hook_row("int8").takes(OptionKind::kFormat));
  EXPECT_TRUE(hook_row("power_sgd").takes(OptionKind::kLink));
  EXPECT_FALSE(hook_row("quantize_per_channel").takes(OptionKind::kLink));
  EXPECT_TRUE(hook_row("power_sgd").takes(OptionKind::kPowerSgdOfMatrices));
  EXPECT_FALSE(hook_row("batched_power_sgd").takes(OptionKind::kPowerSgdOfMatrices));
  for (const NamedOption& option : named_options({})) {
    const auto takes = [&](const HookRow& row) { return row.takes(option.kind); };
    EXPECT_TRUE(std::ranges::any_of(hook_rows(), takes)) << option.name;
    EXPECT_FALSE(hook_row("none").takes(option.kind)) << option.name;
  }
}

// The names of the rows for which the predicate holds.
template <class Predicate>
std::vector<std::string> names_where(const Predicate& predicate) {
  std::vector<std::string> names;
  for (const HookRow& row : hook_rows()) {
    if (predicate(row)) names.push_back(row.name);
  }
  return names;
}

TEST(HookRow, SaysItsNature) {
  EXPECT_THAT(names_where([](const HookRow& row) { return row.chooses; }), ElementsAre("auto"));
  EXPECT_THAT(names_where([](const HookRow& row) { return row.averages_in_groups; }), ElementsAre("post_local_sgd"));
  EXPECT_THAT(names_where([](const HookRow& row) { return row.approximates(); }),
              ElementsAre("power_sgd", "power_sgd_rank2", "batched_power_sgd", "batched_power_sgd_rank2"));
  EXPECT_THAT(names_where([](const HookRow& row) { return row.compresses_buckets(); }),
              ElementsAre("batched_power_sgd", "batched_power_sgd_rank2"));
}

TEST(AddedHookRow, IsGivenWhatItsOptionsLeaveOpen) {
  HookRow row = hook_row("allreduce");
  row.name = "another";
  row.options = {OptionKind::kChannels, OptionKind::kPowerSgd};
  row.format = WireFormat::kInt4B32;
  row.power_sgd_rank = 3;
  row.payload_bytes = [](const GradientSizes&, const node::NodeLayout&, const HookOptions& options) {
    return options.channel_size.value() + options.power_sgd.rank.value() + code_bits(options.wire.format.value());
  };
  const AddedHookRow added(row);
  EXPECT_EQ(bytes_of("another", {1}, 2), 512 + 3 + 4);
  EXPECT_EQ(bytes_of("another", {1}, 2,
                     {.process_group = nullptr,
                      .wire = {.format = WireFormat::kInt8B128},
                      .channel_size = 100,
                      .power_sgd = {.rank = 5}}),
            100 + 5 + 8);
}

TEST(EffectiveOptions, AreThoseThatTheHookFillsIn) {
  EXPECT_EQ(effective_options("int4", {}).wire.format, WireFormat::kInt4B32);
  EXPECT_EQ(effective_options("auto", {}).wire.auto_bits, kDefaultAutoBits);
  EXPECT_EQ(effective_options("quantize_per_channel", {}).channel_size, kDefaultChannelSize);
  const HookOptions of_rank_2 = effective_options("power_sgd_rank2", {.process_group = {}, .power_sgd = {.start = 7}});
  EXPECT_EQ(of_rank_2.power_sgd.rank, 2);
  EXPECT_EQ(of_rank_2.power_sgd.start, 7);
  const HookOptions none = effective_options("none", {});
  EXPECT_EQ(none.wire, WireOptions{});
  EXPECT_FALSE(none.channel_size || none.power_sgd.rank);
}

TEST(HookRow, SaysTheRankOfAnApproximation) {
  EXPECT_EQ(power_sgd_rank_of("power_sgd"), 1);
  EXPECT_EQ(power_sgd_rank_of("batched_power_sgd_rank2"), 2);
  EXPECT_EQ(power_sgd_rank_of("power_sgd_rank2", {.rank = 4}), 4);
  EXPECT_FALSE(power_sgd_rank_of("int8").has_value());
}

TEST(HookRow, SaysThePayloadOfAnApproximation) {
  const GradientSizes gradients{.numel = 60 * 40 + 33, .shapes = {{60, 40}, {33}}};
  const auto bytes = [&](const std::string& name, const PowerSgdOptions& options, int64_t world_size) {
    return bytes_of(name, gradients, world_size, {.process_group = nullptr, .power_sgd = options});
  };
  EXPECT_EQ(bytes("power_sgd", {}, 2), 4 * (60 + 40 + 33));
  EXPECT_EQ(bytes("power_sgd_rank2", {}, 4), 3 * 4 * (120 + 80 + 33));
  EXPECT_EQ(bytes("power_sgd", {.rank = 4}, 2), 4 * (240 + 160 + 33));
  EXPECT_EQ(bytes("power_sgd", {.min_rate = 1000}, 2), 4 * (2400 + 33));
  EXPECT_EQ(bytes("power_sgd", {.alternate = true}, 2), 4 * (60 + 33)) << "of the step that sends more";
  EXPECT_EQ(bytes("power_sgd", {.wire = WireFormat::kBf16}, 2), 2 * (60 + 40 + 33));
  EXPECT_EQ(bytes("batched_power_sgd", {}, 2), 4 * 2 * 50);
}

// The rest follows P of 60 elements and begins at a new block of 128; Q of 40 needs no padding.
TEST(HookRow, SaysThePayloadOfAnApproximationWithWhatFillsUpBlocks) {
  const GradientSizes gradients{.numel = 60 * 40 + 33, .shapes = {{60, 40}, {33}}};
  const HookRow& row = hook_row("power_sgd");
  const auto with = [](const PowerSgdOptions& options) {
    return HookOptions{.process_group = nullptr, .power_sgd = options};
  };
  const HookOptions both = with({.wire = WireFormat::kInt8B128});
  const HookOptions in_turn = with({.alternate = true, .wire = WireFormat::kInt8B128});
  const auto size = [](int64_t numel) { return encoded_size(numel, WireFormat::kInt8B128); };
  EXPECT_EQ(row.payload_bytes(gradients, node::NodeLayout::flat(2), both), size(128 + 33) + size(40));
  EXPECT_EQ(row.payload_bytes(gradients, node::NodeLayout::flat(2), in_turn), size(128 + 33));
  EXPECT_EQ(row.staged_numel(gradients, both), 128 + 33 + 40);
  EXPECT_EQ(row.staged_numel(gradients, in_turn), 128 + 33);
  EXPECT_EQ(row.staged_numel(gradients, with({})), 60 + 33 + 40);
}

TEST(AddedHookRow, GoesAsItCame) {
  const std::vector<std::string> names = comm_hook_names();
  {
    HookRow row = hook_row("allreduce");
    row.name = "another";
    const AddedHookRow added(row);
    EXPECT_EQ(comm_hook_names().back(), "another");
    EXPECT_EQ(bytes_of("another", {1024}, 4), 2 * 3 * 1024);
  }
  EXPECT_EQ(comm_hook_names(), names);
}

TEST(HookRow, SendsASegmentBetweenNodes) {
  const GradientSizes gradients{.numel = 1 << 20, .one_dimensional = 1000};
  const HookOptions options{.process_group = nullptr, .wire = {.exempt_one_dimensional = true}};
  const auto bytes = [&](const node::NodeLayout& layout) {
    return hook_row("int8").payload_bytes(gradients, layout, options);
  };
  // Each of a node's two ranks sends half of the message to the other node; the exempt elements are one segment of a
  // grain.
  EXPECT_EQ(bytes(node::NodeLayout::of_size(4, 2)), encoded_size(1 << 19, WireFormat::kInt8B128) + 4000);
  EXPECT_EQ(bytes(node::NodeLayout::of_size(4, 4)), 0);
}

}  // namespace
}  // namespace narrowcast::hooks
