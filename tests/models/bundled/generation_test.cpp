#include <narrowcast/generation.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/support/error_message.h"

namespace narrowcast::models {
namespace {

at::Generator seeded(uint64_t seed) { return at::detail::createCPUGenerator(seed); }

// Returns constant logits.
NextToken constant(const std::vector<double>& logits) {
  return {.context = 4, .logits = [logits = at::tensor(logits)](const at::Tensor&) { return logits; }};
}

// Each token's share of the draws.
at::Tensor shares(const NextToken& next, const GenerateOptions& options) {
  const at::Tensor tokens = generate(next, at::zeros({1}, at::kLong), options, seeded(3));
  return at::bincount(tokens, {}, 3).to(at::kDouble) / static_cast<double>(options.count);
}

constexpr int64_t kDraws = 2000;
constexpr double kFiveDeviations = 0.056;  // of a binomial share: 5 * sqrt(1/4 / 2000)

TEST(Generate, DrawsWithTheProbabilitiesOfTheLogits) {
  const std::vector<double> logits = {0, 1, -1};
  const at::Tensor share = shares(constant(logits), {.count = kDraws});
  EXPECT_LT((share - at::tensor(logits).softmax(0)).abs().max().item<double>(), kFiveDeviations);
}

TEST(Generate, TemperatureDividesTheLogits) {
  const std::vector<double> logits = {0, 1, -1};
  const at::Tensor share = shares(constant(logits), {.count = kDraws, .temperature = 0.5});
  EXPECT_LT((share - (at::tensor(logits) / 0.5).softmax(0)).abs().max().item<double>(), kFiveDeviations);
}

TEST(Generate, TopKLeavesTheOthersOut) {
  const at::Tensor share = shares(constant({0, 1, -1}), {.count = kDraws, .top_k = 2});
  EXPECT_EQ(share[2].item<double>(), 0);
  EXPECT_NEAR(share[0].item<double>(), 1 / (1 + std::exp(1)), kFiveDeviations);
}

TEST(Generate, KnowsNoTokensBehindTheVocabulary) {
  EXPECT_EQ(shares(constant({0, 1, 9}), {.count = kDraws, .vocabulary = 2})[2].item<double>(), 0);
  EXPECT_EQ(shares(constant({0, 1, 9}), {.count = 5, .temperature = 0, .vocabulary = 2})[1].item<double>(), 1);
}

// The model predicts t + 1 after token t, and records the tokens that it is shown.
TEST(Generate, ShowsTheModelTheLastTokensOfItsContext) {
  std::vector<at::Tensor> seen;
  const NextToken counting = {.context = 3, .logits = [&](const at::Tensor& tokens) {
                                seen.push_back(tokens.clone());
                                return at::one_hot(tokens[-1] + 1, 10).to(at::kFloat);
                              }};
  const at::Tensor prompt = at::arange(2, at::kLong);
  const at::Tensor tokens = generate(counting, prompt, {.count = 4, .temperature = 0}, seeded(0));
  EXPECT_TRUE(tokens.equal(at::arange(2, 6, at::kLong))) << tokens;
  ASSERT_EQ(seen.size(), 4U);
  EXPECT_TRUE(seen.front().equal(prompt));
  EXPECT_TRUE(seen.back().equal(at::arange(2, 5, at::kLong))) << seen.back();
}

TEST(Generate, CountZeroGivesNothing) {
  EXPECT_EQ(generate(constant({0, 1}), at::zeros({1}, at::kLong), {.count = 0}, seeded(0)).numel(), 0);
}

TEST(Generate, WrongOptionsAreNamed) {
  const auto message = [](const at::Tensor& prompt, const GenerateOptions& options) {
    return testing::error_message<c10::ValueError>([&] { generate(constant({0, 1}), prompt, options, seeded(0)); });
  };
  const at::Tensor prompt = at::zeros({1}, at::kLong);
  EXPECT_EQ(message(prompt, {.count = -1}), "generate: count must be at least 0, but is -1");
  EXPECT_EQ(message(prompt, {.temperature = -2}), "generate: temperature must be a number of at least 0, but is -2");
  EXPECT_EQ(message(prompt, {.temperature = NAN}), "generate: temperature must be a number of at least 0, but is nan");
  EXPECT_EQ(message(prompt, {.top_k = -3}), "generate: top_k must be at least 0, but is -3");
  EXPECT_EQ(message(prompt, {.vocabulary = -3}), "generate: vocabulary must be at least 0, but is -3");
  EXPECT_EQ(message(at::zeros({0}, at::kLong), {}),
            "generate: prompt must be a non-empty tensor of 1 dimension, but has the shape [0]");
  EXPECT_THROW(generate(constant({0, 1}), at::zeros({1}), {}, seeded(0)), c10::TypeError);
}

}  // namespace
}  // namespace narrowcast::models
