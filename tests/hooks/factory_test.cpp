#include <narrowcast/hooks.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::hooks {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

// The message of the c10::ValueError that making the hook throws.
std::string value_error(const std::string& name, const HookOptions& options) {
  return testing::error_message<c10::ValueError>([&] { create_comm_hook(name, options); });
}

TEST(HookFactory, NamesItsHooksInTheOrderOfTheDocumentation) {
  EXPECT_THAT(comm_hook_names(),
              ElementsAre("none", "allreduce", "fp16_compress", "bf16_compress", "quantize_per_tensor",
                          "quantize_per_channel", "noop", "quantized_allreduce", "int8", "int6", "int4", "fp8"));
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
  EXPECT_THAT(value_error("quantise", {}),
              AllOf(HasSubstr("'quantise'"), HasSubstr("none, allreduce, fp16_compress, bf16_compress, "
                                                       "quantize_per_tensor, quantize_per_channel, noop, "
                                                       "quantized_allreduce, int8, int6, int4, fp8")));
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
                                  {.exempt_one_dimensional = true}};
    const char* const kNamed[] = {"hook_format: int4_b32", "stochastic_rounding: seed 7", "error_feedback: true",
                                  "exempt_one_dimensional: true"};
    for (size_t i = 0; i < std::size(kGiven); ++i) {
      for (const char* name : {"none", "allreduce", "quantize_per_channel", "noop"}) {
        EXPECT_THAT(value_error(name, {group, kGiven[i]}),
                    AllOf(HasSubstr(kNamed[i]), HasSubstr(name), HasSubstr("quantized_allreduce")));
      }
      EXPECT_NE(create_comm_hook("quantized_allreduce", {group, kGiven[i]}), nullptr);
      if (!kGiven[i].format) {
        EXPECT_NE(create_comm_hook("int6", {group, kGiven[i]}), nullptr);
      }
    }
    EXPECT_THAT(value_error("int8", {group, kGiven[0]}),
                AllOf(HasSubstr("hook_format: int4_b32"), HasSubstr("'int8', which has a format of its own")));
  });
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
