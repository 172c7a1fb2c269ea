// create_comm_hook: the hooks that it makes, and the options that it refuses.
#include <narrowcast/hooks.h>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "hooks/row/hook_options.h"
#include "hooks/table/hook_table.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::hooks {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

// The message of the c10::ValueError when the hook is made.
std::string value_error(const std::string& name, const HookOptions& options) {
  return testing::error_message<c10::ValueError>([&] { create_comm_hook(name, options); });
}

TEST(HookFactory, NamesItsHooksInTheOrderOfTheDocumentation) {
  EXPECT_THAT(comm_hook_names(),
              ElementsAre("none", "allreduce", "fp16_compress", "bf16_compress", "quantize_per_tensor",
                          "quantize_per_channel", "noop", "quantized_allreduce", "int8", "int6", "int4", "fp8", "var6",
                          "var5", "var4", "var3", "fp32", "auto", "post_local_sgd", "power_sgd", "power_sgd_rank2",
                          "batched_power_sgd", "batched_power_sgd_rank2"));
}

TEST(HookFactory, MakesEachHookByItsName) {
  testing::run_ranks(1, [](int64_t, const Group& group) {
    for (const std::string& name : comm_hook_names()) {
      const auto hook = create_comm_hook(name, {group});
      if (name == "none") {
        EXPECT_EQ(hook, nullptr);
      } else {
        ASSERT_NE(hook, nullptr);
        EXPECT_EQ(hook->name(), name);
        EXPECT_EQ(hook->payload_bytes_sent(), 0);
      }
    }
  });
}

TEST(HookFactory, ListsTheKnownNamesForAnUnknownOne) {
  std::string known;
  for (const std::string& name : comm_hook_names()) known.append(known.empty() ? "" : ", ").append(name);
  EXPECT_EQ(value_error("quantise", {}), "hook: unknown name 'quantise'; known: " + known);
}

TEST(HookFactory, NeedsAProcessGroupWithWhatTheHookUses) {
  EXPECT_THAT(value_error("allreduce", {}), AllOf(HasSubstr("process_group"), HasSubstr("'allreduce'")));
  const HookOptions no_backend{c10::make_intrusive<c10d::ProcessGroup>(0, 1)};
  EXPECT_THAT(value_error("quantize_per_tensor", no_backend), HasSubstr("backend for CPU tensors"));
  EXPECT_EQ(create_comm_hook("none", {}), nullptr);
}

TEST(HookFactory, RefusesOptionsThatHaveNoEffect) {
  testing::run_ranks(1, [](int64_t, const Group& group) {
    const WireOptions kGiven[] = {{.format = WireFormat::kInt4B32},
                                  {.stochastic_rounding_seed = 7},
                                  {.error_feedback = true},
                                  {.exempt_one_dimensional = true},
                                  {.levels = Levels::kOne},
                                  {.node_size = 1},
                                  {.link_gbit = 10},
                                  {.link_us = 50},
                                  {.connections = 4}};
    const char* const kNamed[] = {"hook_format: int4_b32", "stochastic_rounding: seed 7",
                                  "error_feedback: true",  "exempt_one_dimensional: true",
                                  "levels: one",           "node_size: 1",
                                  "link_gbit: 10",         "link_us: 50",
                                  "connections: 4"};
    for (size_t i = 0; i < std::size(kGiven); ++i) {
      for (const char* name : {"none", "allreduce", "quantize_per_channel", "noop"}) {
        EXPECT_THAT(value_error(name, {group, kGiven[i]}),
                    AllOf(HasSubstr(kNamed[i]), HasSubstr(name), HasSubstr("quantized_allreduce")));
      }
      const WireOptions& given = kGiven[i];
      const bool is_of_nodes = is_set(given, OptionKind::kLevels) || is_set(given, OptionKind::kLink) ||
                               is_set(given, OptionKind::kConnections);
      if (is_of_nodes) {
        EXPECT_NE(create_comm_hook("power_sgd", {group, kGiven[i]}), nullptr);
        EXPECT_THAT(value_error("allreduce", {group, kGiven[i]}), HasSubstr("auto, power_sgd, power_sgd"));
      } else {
        EXPECT_THAT(value_error("power_sgd", {group, kGiven[i]}),
                    AllOf(HasSubstr(kNamed[i]), HasSubstr("'power_sgd'; it is for quantized_allreduce")));
      }
      EXPECT_NE(create_comm_hook("quantized_allreduce", {group, kGiven[i]}), nullptr);
      if (!kGiven[i].format) {
        EXPECT_NE(create_comm_hook("int6", {group, kGiven[i]}), nullptr);
        EXPECT_NE(create_comm_hook("auto", {group, kGiven[i]}), nullptr);
      }
    }
    EXPECT_THAT(value_error("int8", {group, kGiven[0]}),
                AllOf(HasSubstr("hook_format: int4_b32"), HasSubstr("'int8', which has a fixed format")));
  });
}

TEST(HookFactory, RefusesSparseFormatsWithoutErrorFeedback) {
  testing::run_ranks(2, [](int64_t, const Group& group) {
    EXPECT_EQ(value_error("quantized_allreduce", {group, {.format = WireFormat::kTop2P15}}),
              "create_comm_hook on rank 0: hook_format: top2_15 sends only 1.5% of the elements of a step. It needs "
              "error_feedback, which adds the others to the next step");
    EXPECT_THAT(
        value_error("quantized_allreduce",
                    {group, {.format = WireFormat::kTop2P31, .stochastic_rounding_seed = 1, .error_feedback = true}}),
        HasSubstr("stochastic_rounding: has no effect with the format top2_31"));
    EXPECT_THAT(value_error("power_sgd", {.process_group = group, .power_sgd = {.wire = WireFormat::kTop2P15}}),
                HasSubstr("power_sgd_wire: top2_15 would drop most elements"));
    EXPECT_NE(
        create_comm_hook("quantized_allreduce", {group, {.format = WireFormat::kTop2P15, .error_feedback = true}}),
        nullptr);
  });
}

TEST(HookFactory, RefusesLinksAndBitsThatThereCannotBe) {
  testing::run_ranks(1, [](int64_t, const Group& group) {
    for (const double bad : {0.0, -1.0, 1e-300, 1e300, static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
      EXPECT_THAT(value_error("int8", {group, {.link_gbit = bad}}),
                  HasSubstr("link_gbit: must be in 1e-06..1e+06, but is"));
      EXPECT_THAT(value_error("auto", {group, {.link_us = bad}}),
                  HasSubstr("link_us: must be in 0.001..1e+09, but is"));
    }
    for (const auto& [gbit, us] : {std::pair(kLeastLinkGbit, kLeastLinkUs), std::pair(kMostLinkGbit, kMostLinkUs)}) {
      EXPECT_NE(create_comm_hook("auto", {group, {.link_gbit = gbit, .link_us = us}}), nullptr);
    }
    for (const int64_t bad : {0, 65, -1}) {
      EXPECT_THAT(value_error("int8", {group, {.connections = bad}}),
                  HasSubstr("connections: must be auto or in 1..64, but is " + std::to_string(bad)));
    }
    for (const int64_t bad : {3, 9, -8}) {
      EXPECT_THAT(value_error("auto", {group, {.auto_bits = bad}}), HasSubstr("auto_bits: must be in 4..8, but is"));
    }
    EXPECT_THAT(value_error("int8", {group, {.auto_bits = 4}}),
                AllOf(HasSubstr("auto_bits: 4 has no effect with the hook 'int8'"), HasSubstr("it is for auto")));
    EXPECT_NE(create_comm_hook("auto", {group, {.auto_bits = 4}}), nullptr);
  });
}

// Gloo would end a process whose neighbour sends more than it expects.
TEST(HookFactory, RefusesOtherHooksAndOptionsOnOtherRanks) {
  testing::run_ranks(3, [](int64_t rank, const Group& group) {
    const auto hook_of = [&](const char* usual, const char* of_rank_1) { return rank == 1 ? of_rank_1 : usual; };
    EXPECT_EQ(value_error(hook_of("int8", "int4"), {group}),
              "create_comm_hook: hook differs between ranks: rank 0 has int8, rank 1 has int4");
    EXPECT_EQ(value_error(hook_of("allreduce", "none"), {group}),
              "create_comm_hook: hook differs between ranks: rank 0 has allreduce, rank 1 has none");
    EXPECT_EQ(value_error("power_sgd", {.process_group = group, .power_sgd = {.start = rank == 2 ? 7 : 5}}),
              "create_comm_hook: power_sgd_start differs between ranks: rank 0 has 5, rank 2 has 7");
    EXPECT_NE(create_comm_hook("int8", {group}), nullptr) << "the group is as usable as before";
  });
}

TEST(HookFactory, RefusesLevelsThatThereCannotBe) {
  testing::run_ranks(1, [](int64_t, const Group& group) {
    EXPECT_THAT(value_error("int8", {group, {.levels = Levels::kTwo}}),
                HasSubstr("levels: two is impossible, because every node has one rank"));
    EXPECT_THAT(value_error("int8", {group, {.levels = Levels::kTwo, .node_size = 1}}),
                HasSubstr("levels: two contradicts node_size: 1"));
    EXPECT_THAT(value_error("int8", {group, {.levels = Levels::kOne, .node_size = 2}}),
                HasSubstr("node_size: 2 has no effect with levels: one"));
    EXPECT_THAT(value_error("int8", {group, {.node_size = 0}}), HasSubstr("node_size: must be at least 1, but is 0"));
  });
  EXPECT_THAT(testing::error_message<c10::ValueError>([] { parse_levels("three"); }), HasSubstr("'three'"));
  for (const Levels levels : {Levels::kAuto, Levels::kOne, Levels::kTwo}) {
    EXPECT_EQ(parse_levels(to_string(levels)), levels);
  }
}

TEST(HookFactory, OnlyChannelsHaveASize) {
  testing::run_ranks(1, [](int64_t, const Group& group) {
    for (const std::string& name : comm_hook_names()) {
      const HookOptions options{.process_group = group, .channel_size = 100};
      if (name == "quantize_per_channel") {
        EXPECT_NE(create_comm_hook(name, options), nullptr);
        EXPECT_EQ(channel_size_of(name, 100), 100);
        EXPECT_EQ(channel_size_of(name), 512);
        continue;
      }
      EXPECT_THAT(value_error(name, options),
                  AllOf(HasSubstr("channel_size: 100 has no effect with the hook '" + name + "'"),
                        HasSubstr("quantize_per_channel")));
      EXPECT_FALSE(channel_size_of(name, 100).has_value());
    }
    for (const int64_t size : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
      EXPECT_THAT(value_error("quantize_per_channel", {.process_group = group, .channel_size = size}),
                  HasSubstr("channel_size: must be at least 1, but is " + std::to_string(size)));
    }
  });
}

}  // namespace
}  // namespace narrowcast::hooks
