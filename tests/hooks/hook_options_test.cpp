#include <narrowcast/hook_options.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace narrowcast::hooks {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

template <class Options>
std::vector<std::string> given(const Options& options) {
  std::vector<std::string> texts;
  for (const NamedOption& option : named_options(options)) {
    if (option.is_given) texts.push_back(option.name + ": " + option.value);
  }
  return texts;
}

TEST(NamedOptions, SayWhatIsNotAsItIsByItself) {
  EXPECT_THAT(given(WireOptions{}), IsEmpty());
  EXPECT_THAT(given(WireOptions{.format = WireFormat::kInt4B32,
                                .stochastic_rounding_seed = 7,
                                .error_feedback = true,
                                .exempt_one_dimensional = true,
                                .levels = Levels::kTwo,
                                .node_size = 2,
                                .link_gbit = 2.5,
                                .link_us = 50,
                                .auto_bits = 6}),
              ElementsAre("hook_format: int4_b32", "stochastic_rounding: seed 7", "error_feedback: true",
                          "exempt_one_dimensional: true", "levels: two", "node_size: 2", "link_gbit: 2.5",
                          "link_us: 50", "auto_bits: 6"));
  EXPECT_THAT(given(PowerSgdOptions{}), IsEmpty());
  EXPECT_THAT(given(PowerSgdOptions{.rank = 2, .warm_start = false, .epsilon = 0.5, .wire = WireFormat::kBf16}),
              ElementsAre("power_sgd_rank: 2", "power_sgd_warm_start: false", "power_sgd_epsilon: 0.5",
                          "power_sgd_wire: bf16"));
}

TEST(NamedOptions, HaveATextWithoutAValue) {
  EXPECT_EQ(named_options(WireOptions{})[0].value, "none");
  EXPECT_EQ(named_options(WireOptions{})[1].value, "false") << "no seed: to the nearest";
  EXPECT_EQ(named_options(PowerSgdOptions{})[0].value, "none");
}

}  // namespace
}  // namespace narrowcast::hooks
