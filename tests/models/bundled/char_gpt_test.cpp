#include <narrowcast/char_gpt.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <set>

#include <narrowcast/models.h>
#include "tests/support/error_message.h"

namespace narrowcast::models {
namespace {

using testing::error_message;

// Threads do not help with tensors this small, and on a busy machine waiting for one another would dominate.
[[maybe_unused]] const bool kOneThread = [] {
  at::set_num_threads(1);
  return true;
}();

constexpr CharGptOptions kTiny = {.layers = 2, .heads = 2, .width = 16, .context = 12, .vocabulary_size = 11};

at::Tensor random_tokens(at::IntArrayRef sizes, int64_t vocabulary_size, uint64_t seed) {
  return at::randint(vocabulary_size, sizes, at::detail::createCPUGenerator(seed), at::kLong);
}

Batch random_batch(const CharGptOptions& shape, int64_t rows, uint64_t seed) {
  const at::Tensor tokens = random_tokens({rows, shape.context + 1}, shape.vocabulary_size, seed);
  return {tokens.slice(1, 0, shape.context), tokens.slice(1, 1)};
}

TEST(CharGpt, LogitsHaveOneRowPerTokenInFloat32) {
  CharGpt model(kTiny);
  const at::Tensor logits = model.logits(random_tokens({3, 5}, 11, 1));
  EXPECT_EQ(logits.sizes(), at::IntArrayRef({3, 5, 11}));
  EXPECT_EQ(logits.scalar_type(), at::kFloat);
}

TEST(CharGpt, LossIsTheMeanCrossEntropyOfTheLogits) {
  CharGpt model(kTiny);
  const Batch batch = random_batch(kTiny, 3, 2);
  const at::Tensor log_probabilities = model.logits(batch.inputs).log_softmax(-1);
  const at::Tensor expected = -log_probabilities.gather(2, batch.targets.unsqueeze(2)).mean();
  // The same float32 sum of 36 terms of about 2.4 in a different order: 36 * 2^-24 * 2.4 < 1e-5.
  EXPECT_NEAR(model.forward(batch).item<double>(), expected.item<double>(), 1e-5);
}

TEST(CharGpt, GradientReachesEveryParameter) {
  CharGpt model(kTiny);
  model.forward(random_batch(kTiny, 2, 3)).backward();
  for (const auto& parameter : model.named_parameters()) {
    ASSERT_TRUE(parameter->grad().defined()) << parameter.key();
    EXPECT_GT(parameter->grad().abs().sum().item<double>(), 0) << parameter.key();
  }
}

TEST(CharGpt, LaterTokensDoNotChangeEarlierLogits) {
  for (const int64_t context : {12, 200}) {  // 200: attention in more than one tile
    CharGptOptions shape = kTiny;
    shape.context = context;
    CharGpt model(shape);
    const at::Tensor tokens = random_tokens({2, context}, shape.vocabulary_size, 4);
    const at::Tensor before = model.logits(tokens);
    for (const int64_t changed : {context - 1, context / 2, int64_t{1}}) {
      const at::Tensor other = tokens.clone();
      other.slice(1, changed).add_(1).remainder_(shape.vocabulary_size);
      const at::Tensor after = model.logits(other);
      EXPECT_TRUE(after.slice(1, 0, changed).equal(before.slice(1, 0, changed))) << "changed token " << changed;
      EXPECT_FALSE(after.select(1, changed).equal(before.select(1, changed))) << "changed token " << changed;
    }
  }
}

TEST(CharGpt, EarlierTokensDoChangeLaterLogits) {
  CharGpt model(kTiny);
  const at::Tensor tokens = random_tokens({1, 12}, 11, 5);
  const at::Tensor other = tokens.clone();
  other.select(1, 0).add_(1).remainder_(11);
  EXPECT_FALSE(model.logits(other).select(1, 11).equal(model.logits(tokens).select(1, 11)));
}

TEST(CharGpt, PositionMatters) {
  CharGpt model(kTiny);
  const at::Tensor logits = model.logits(at::full({1, 4}, 3, at::kLong));
  EXPECT_FALSE(logits[0][0].equal(logits[0][1]));
}

TEST(CharGpt, TiedWeightIsOneParameter) {
  CharGpt model(kTiny);
  std::set<const void*> storages;
  int64_t of_vocabulary_size = 0;
  for (const auto& parameter : model.named_parameters()) {
    EXPECT_TRUE(storages.insert(parameter->data_ptr()).second) << parameter.key();
    of_vocabulary_size += parameter->size(0) == kTiny.vocabulary_size;
  }
  EXPECT_EQ(of_vocabulary_size, 1);
  // The output projection uses it: without it every logit is zero.
  const at::NoGradGuard no_grad;
  model.named_parameters()["token_embedding.weight"].zero_();
  EXPECT_EQ(model.logits(random_tokens({1, 3}, 11, 6)).abs().max().item<float>(), 0);
}

TEST(CharGpt, ParameterNamesAreStable) {  // they are the keys of model.safetensors
  std::vector<std::string> names;
  for (const auto& parameter : CharGpt({.layers = 1, .heads = 1, .width = 4}).named_parameters()) {
    names.push_back(parameter.key());
  }
  const std::vector<std::string> expected = {"token_embedding.weight",
                                             "position_embedding.weight",
                                             "blocks.0.attention_norm.weight",
                                             "blocks.0.attention_norm.bias",
                                             "blocks.0.query_key_value.weight",
                                             "blocks.0.query_key_value.bias",
                                             "blocks.0.attention_output.weight",
                                             "blocks.0.attention_output.bias",
                                             "blocks.0.mlp_norm.weight",
                                             "blocks.0.mlp_norm.bias",
                                             "blocks.0.mlp_input.weight",
                                             "blocks.0.mlp_input.bias",
                                             "blocks.0.mlp_output.weight",
                                             "blocks.0.mlp_output.bias",
                                             "final_norm.weight",
                                             "final_norm.bias"};
  EXPECT_EQ(names, expected);
}

TEST(CharGpt, InitialisationFollowsGpt2) {
  const CharGptOptions shape = {.layers = 8, .heads = 4, .width = 128};
  CharGpt model(shape);
  const auto parameters = model.named_parameters();
  // The sample deviation of n >= 16384 normal values is within 5 / sqrt(2 n) < 3% of the true one (5 sigma).
  EXPECT_NEAR(parameters["token_embedding.weight"].std().item<double>(), 0.02, 0.03 * 0.02);
  EXPECT_NEAR(parameters["blocks.3.mlp_input.weight"].std().item<double>(), 0.02, 0.03 * 0.02);
  EXPECT_NEAR(parameters["blocks.3.attention_output.weight"].std().item<double>(), 0.005, 0.03 * 0.005);
  EXPECT_NEAR(parameters["blocks.7.mlp_output.weight"].std().item<double>(), 0.005, 0.03 * 0.005);
  EXPECT_EQ(parameters["blocks.0.mlp_input.bias"].abs().max().item<float>(), 0);
  EXPECT_EQ(parameters["final_norm.weight"].min().item<float>(), 1);
}

TEST(CharGpt, InitialLossIsNearLogOfTheVocabularySize) {
  // A normed state has the length sqrt(width) = 8 and embeddings are N(0, 0.02^2), so logits deviate by
  // 8 * 0.02 = 0.16 from 0, which changes the log-sum-exp by 0.16^2 / 2 = 0.013. The input's own logit is about
  // 0.02 * 64 / sqrt(2) = 0.9, which adds at most (e^0.9 - 1) / 65 = 0.023. The mean of 512 target logits
  // deviates by 0.16 / sqrt(512) = 0.007 (one sigma). The total is less than 0.1.
  const CharGptOptions shape = {.layers = 4, .heads = 4, .width = 64, .context = 64, .vocabulary_size = 65};
  CharGpt model(shape);
  EXPECT_NEAR(model.forward(random_batch(shape, 8, 7)).item<double>(), std::log(65.0), 0.1);
}

TEST(CharGpt, SameSeedGivesTheSameModel) {
  at::manual_seed(5);
  CharGpt first(kTiny);
  at::manual_seed(5);
  CharGpt second(kTiny);
  const at::Tensor tokens = random_tokens({1, 12}, 11, 8);
  EXPECT_TRUE(first.logits(tokens).equal(second.logits(tokens)));
}

// Trains on one cyclic text with hand-written gradient descent with momentum.
double train_on_cycle(CharGpt& model, const Batch& batch, int steps) {
  std::vector<at::Tensor> velocities;
  for (const at::Tensor& parameter : model.parameters()) {
    velocities.push_back(at::zeros_like(parameter));
  }
  for (int step = 0; step < steps; ++step) {
    model.zero_grad();
    model.forward(batch).backward();
    const at::NoGradGuard no_grad;
    const std::vector<at::Tensor> parameters = model.parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      velocities[i].mul_(0.9).add_(parameters[i].grad());
      parameters[i].sub_(velocities[i], 0.1);
    }
  }
  return model.forward(batch).item<double>();
}

TEST(CharGpt, OverfitsATinyTextAndContinuesIt) {
  at::manual_seed(9);
  CharGpt model(kTiny);
  const at::Tensor text = at::arange(13 + 10, at::kLong).remainder(10);  // 0 1 2 ... 9 0 1 2 ...
  const Batch batch = {text.slice(0, 0, 12).unsqueeze(0), text.slice(0, 1, 13).unsqueeze(0)};
  EXPECT_LT(train_on_cycle(model, batch, 200), 0.05);
  const at::Tensor continued =
      model.generate(text.slice(0, 0, 3), {.count = 7, .temperature = 0}, at::detail::createCPUGenerator(0));
  EXPECT_TRUE(continued.equal(at::arange(3, 10, at::kLong))) << continued;
}

TEST(CharGptGenerate, SameGeneratorSeedGivesTheSameTokens) {
  CharGpt model(kTiny);
  const at::Tensor prompt = random_tokens({2}, 11, 10);
  const auto sample = [&](uint64_t seed) {
    return model.generate(prompt, {.count = 40}, at::detail::createCPUGenerator(seed));
  };
  EXPECT_EQ(sample(1).sizes(), at::IntArrayRef({40}));
  EXPECT_TRUE(sample(1).equal(sample(1)));
  EXPECT_FALSE(sample(1).equal(sample(2)));  // the probability of equality is about 11^-40
}

TEST(CharGptGenerate, TopOneIsGreedy) {
  CharGpt model(kTiny);
  const at::Tensor prompt = random_tokens({30}, 11, 11);  // longer than the context
  const at::Tensor greedy = model.generate(prompt, {.count = 20, .temperature = 0}, at::detail::createCPUGenerator(1));
  const at::Tensor top_one = model.generate(prompt, {.count = 20, .top_k = 1}, at::detail::createCPUGenerator(2));
  EXPECT_TRUE(greedy.equal(top_one));
}

TEST(CharGpt, WrongInputsAreNamed) {
  CharGpt model(kTiny);
  EXPECT_EQ(error_message<c10::ValueError>([&] {
              model.logits(at::zeros({1, 13}, at::kLong));
            }),
            "char_gpt: tokens must be at most context = 12 long, but are 13");
  EXPECT_EQ(error_message<c10::TypeError>([&] {
              model.logits(at::zeros({1, 2}));
            }),
            "char_gpt: tokens must be int64, but is Float");
  const Batch unequal = {at::zeros({1, 3}, at::kLong), at::zeros({1, 2}, at::kLong)};
  EXPECT_EQ(error_message<c10::ValueError>([&] { model.forward(unequal); }),
            "char_gpt: inputs and targets must have one shape, but have [1, 3] and [1, 2]");
}

TEST(CharGpt, OptionsRoundTrip) {
  CharGpt model(kTiny);
  const ModelOptions expected = {{"layers", 2}, {"heads", 2}, {"width", 16}, {"context", 12}, {"vocabulary_size", 11}};
  EXPECT_EQ(model.options(), expected);
  EXPECT_EQ(create_model("char_gpt", model.options())->options(), expected);
}

TEST(CharGpt, WrongOptionsAreNamed) {
  EXPECT_EQ(error_message<c10::ValueError>([] { CharGpt({.layers = 0}); }),
            "char_gpt: option layers must be in 1..256, but is 0");
  EXPECT_EQ(error_message<c10::ValueError>([] { CharGpt({.heads = 3, .width = 16}); }),
            "char_gpt: option heads must divide width, but heads is 3 and width is 16");
}

}  // namespace
}  // namespace narrowcast::models
