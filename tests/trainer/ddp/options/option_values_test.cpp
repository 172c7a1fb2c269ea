#include "trainer/ddp/options/option_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <narrowcast/version.h>

namespace narrowcast {
namespace {

std::string value_of(const std::string& name, const DdpOptions& options) {
  const std::vector<NamedValue> values = describe(options);
  const auto found = std::ranges::find(values, name, &NamedValue::name);
  return found == values.end() ? "not there" : found->value;
}

// A difference of versions is the cause of other differences.
TEST(OptionValues, BeginWithTheVersion) {
  const std::vector<NamedValue> values = describe(DdpOptions());
  EXPECT_EQ(values.front().name, "narrowcast version");
  EXPECT_EQ(values.front().value, version());
}

TEST(OptionValues, HaveEachNameOnce) {
  std::set<std::string> names;
  for (const NamedValue& value : describe(DdpOptions().hook("int8"))) {
    EXPECT_TRUE(names.insert(value.name).second) << value.name;
  }
}

TEST(OptionValues, AreThoseThatTheHookChooses) {
  EXPECT_EQ(value_of("hook_format", DdpOptions().hook("int4")), "int4_b32");
  EXPECT_EQ(value_of("bucket_cap_mb", DdpOptions().bucket_cap_mb(2.5)), "2.5");
  EXPECT_EQ(value_of("bucket_cap_mb", DdpOptions().bucket_cap_mb(std::nullopt)), "auto");
  EXPECT_EQ(value_of("static_graph", DdpOptions().static_graph(true)), "true");
  EXPECT_EQ(value_of("static_graph", DdpOptions()), "false");
}

TEST(RoundsInBlocks, HoldsForHooksWhoseFormatHasBlocks) {
  const auto rounds = [](const std::string& hook) { return rounds_in_blocks(DdpOptions().hook(hook)); };
  for (const char* const hook : {"int8", "int6", "int4", "fp8", "var6", "var3", "quantized_allreduce", "auto"}) {
    EXPECT_TRUE(rounds(hook)) << hook;
  }
  for (const char* const hook : {"none", "allreduce", "bf16_compress", "quantize_per_tensor", "quantize_per_channel",
                                 "fp32", "noop", "power_sgd", "post_local_sgd"}) {
    EXPECT_FALSE(rounds(hook)) << hook << ", whose bits are those of the order in which gradients come";
  }
  const DdpOptions bf16 = DdpOptions().hook("quantized_allreduce").wire({.format = WireFormat::kBf16});
  EXPECT_FALSE(rounds_in_blocks(bf16));
  EXPECT_TRUE(rounds_in_blocks(DdpOptions().hook("post_local_sgd").local({.hook = "int8"})));
}

}  // namespace
}  // namespace narrowcast
