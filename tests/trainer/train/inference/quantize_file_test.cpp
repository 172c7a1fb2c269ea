#include "trainer/train/quantization/layer_reports.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace narrowcast::quantization {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

models::StateDict floats() {
  return {{"a.bias", at::zeros({2})},
          {"a.weight", at::tensor({3.0F, 4.0F, 0.0F, 12.0F}).view({2, 2})},
          {"n", at::ones({5})}};
}

models::StateDict quantised() {
  models::StateDict state = floats();
  state["a.weight"] = at::tensor({3, 4, 1, 12}, at::kChar).view({2, 2});
  state["a.scales"] = at::ones({2});
  return state;
}

TEST(CompareStates, ReportsBytesAndErrorOfEachLayer) {
  const QuantizeReport report = compare(floats(), quantised());
  ASSERT_EQ(report.layers.size(), 1U);
  EXPECT_EQ(report.layers[0].name, "a");
  EXPECT_EQ(report.layers[0].bytes_before, 16);
  EXPECT_EQ(report.layers[0].bytes_after, 4 + 8);
  EXPECT_DOUBLE_EQ(report.layers[0].relative_error, 1.0 / 13);  // one element off by 1, and |weight| is 13
  EXPECT_EQ(report.other_bytes, 8 + 20);
}

TEST(CompareStates, AWeightOfZerosHasNoError) {
  models::StateDict before = floats();
  before["a.weight"].zero_();
  models::StateDict after = quantised();
  after["a.weight"].zero_();
  EXPECT_EQ(compare(before, after).layers[0].relative_error, 0);
}

TEST(CompareStates, ALayerThatHadScalesBeforeIsNone) { EXPECT_TRUE(compare(quantised(), quantised()).layers.empty()); }

TEST(CompareStates, KnowsAModuleThatIsALayerItself) {
  const QuantizeReport report =
      compare({{"bias", at::zeros({2})}, {"weight", at::eye(2)}},
              {{"bias", at::zeros({2})}, {"scales", at::ones({2})}, {"weight", at::eye(2).to(at::kChar)}});
  ASSERT_EQ(report.layers.size(), 1U);
  EXPECT_EQ(report.layers[0].name, "");
  EXPECT_EQ(report.layers[0].bytes_after, 4 + 8);
  EXPECT_EQ(report.other_bytes, 8);
  EXPECT_THAT(report_text(report), HasSubstr("\nthe module "));
}

TEST(ReportText, EndsWithALineForEachLayerThatStays) {
  QuantizeReport report = compare(floats(), quantised());
  report.float_layers = {{"b.out", "'b' uses its weight itself"}, {"", "it has no inputs"}};
  EXPECT_THAT(report_text(report), EndsWith(" B\nb.out stays as it is: 'b' uses its weight itself\n"
                                            "the module stays as it is: it has no inputs\n"));
}

TEST(ReportText, HasALinePerLayerAndTheSum) {
  const std::string text = report_text(compare(floats(), quantised()));
  EXPECT_THAT(text, HasSubstr("layer                     before       after   relative error\n"));
  EXPECT_THAT(text, HasSubstr("a                           16 B        12 B          0.07692\n"));
  EXPECT_THAT(text, HasSubstr("all other tensors           28 B        28 B                -\n"));
  EXPECT_THAT(text, HasSubstr("sum                         44 B        40 B"));
}

// A file names its layers as it likes.
TEST(ReportText, IsNoWiderThanTheNamesItShows) {
  QuantizeReport report = compare(floats(), quantised());
  report.layers.push_back(report.layers[0]);
  report.layers[0].name = std::string(200'000, 'n');
  const std::string text = report_text(report);
  EXPECT_THAT(text, HasSubstr("n [200000 bytes] n"));
  EXPECT_THAT(text, HasSubstr("\na    "));
  EXPECT_LT(text.size(), 2000U);
}

}  // namespace
}  // namespace narrowcast::quantization
