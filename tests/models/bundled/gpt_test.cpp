#include <narrowcast/gpt.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <cmath>

#include <narrowcast/char_gpt.h>
#include <narrowcast/models.h>
#include "models/table/model_table.h"
#include "tests/support/error_message.h"

namespace narrowcast::models {
namespace {

using testing::error_message;

constexpr GptOptions kTinyGpt2 = {.layers = 2, .heads = 2, .width = 16, .context = 12, .vocabulary_size = 11};
constexpr double kDropout = 0.3;

at::Tensor gpt2_tokens(at::IntArrayRef sizes, uint64_t seed) {
  return at::randint(kTinyGpt2.vocabulary_size, sizes, at::detail::createCPUGenerator(seed), at::kLong);
}

Batch gpt2_batch(uint64_t seed) {
  const at::Tensor tokens = gpt2_tokens({3, kTinyGpt2.context + 1}, seed);
  return {tokens.slice(1, 0, kTinyGpt2.context), tokens.slice(1, 1)};
}

at::Tensor generator_state() { return at::detail::getDefaultCPUGenerator().get_state(); }

TEST(Gpt, IsTheSmallestGpt2UnlessToldOtherwise) {
  EXPECT_EQ(count_parameters("gpt"), 124'439'808);  // Hugging Face's count for "gpt2".
}

TEST(Gpt, TheTokenEmbeddingIsItsHead) {
  const Gpt gpt(kTinyGpt2);
  const std::vector<at::Tensor> found = gpt.embeddings_and_heads();
  ASSERT_EQ(found.size(), 2U);
  EXPECT_TRUE(found[0].is_same(gpt.named_parameters()["token_embedding.weight"]));
  EXPECT_TRUE(found[1].is_same(gpt.named_parameters()["position_embedding.weight"]));
}

TEST(Gpt, HeadsAre64WideUnlessGiven) {
  const ModelOptions wide = {{"layers", 1}, {"width", 128}, {"context", 4}, {"vocabulary_size", 5}};
  EXPECT_EQ(create_model("gpt", wide)->options()["heads"], 2);
  EXPECT_EQ(error_message<c10::ValueError>([] {
              create_model("gpt", {{"width", 100}});
            }),
            "gpt: option heads must be given if width is not a multiple of 64, but width is 100");
  EXPECT_EQ(create_model("gpt", {{"layers", 1}, {"width", 100}, {"heads", 5}})->options()["heads"], 5);
}

TEST(Gpt, IsCharGptUnderAnotherName) {
  at::manual_seed(3);
  Gpt gpt(kTinyGpt2);
  at::manual_seed(3);
  CharGpt char_gpt({.layers = 2, .heads = 2, .width = 16, .context = 12, .vocabulary_size = 11});
  EXPECT_EQ(gpt.named_parameters().keys(), char_gpt.named_parameters().keys());
  const at::Tensor tokens = gpt2_tokens({2, 12}, 1);
  EXPECT_TRUE(gpt.logits(tokens).equal(char_gpt.logits(tokens)));
}

TEST(Gpt, ErrorsBeginWithItsName) {
  EXPECT_EQ(error_message<c10::ValueError>([] { Gpt({.layers = 0}); }),
            "gpt: option layers must be in 1..256, but is 0");
  EXPECT_EQ(error_message<c10::ValueError>([] {
              Gpt(kTinyGpt2).logits(at::zeros({1, 13}, at::kLong));
            }),
            "gpt: tokens must be at most context = 12 long, but are 13");
}

// Attention with explicit weights. `dropout` returns a tensor after dropout.
template <class Dropout>
at::Tensor gpt2_attention(const at::Tensor& x, const torch::OrderedDict<std::string, at::Tensor>& weights,
                          const std::string& block, const Dropout& dropout) {
  const auto linear = [&](const at::Tensor& input, const std::string& layer) {
    return at::linear(input, weights[block + layer + ".weight"], weights[block + layer + ".bias"]);
  };
  const int64_t rows = x.size(0);
  const int64_t length = x.size(1);
  const auto parts = linear(x, "query_key_value").split(16, -1);
  const auto heads = [&](const at::Tensor& part) { return part.view({rows, length, 2, 8}).transpose(1, 2); };
  const at::Tensor seen = at::ones({length, length}, at::kBool).tril();
  const at::Tensor scores = heads(parts[0]).matmul(heads(parts[1]).transpose(2, 3)) / std::sqrt(8.0);
  const at::Tensor shares = dropout(scores.masked_fill(seen.logical_not(), -INFINITY).softmax(-1));
  return linear(shares.matmul(heads(parts[2])).transpose(1, 2).reshape({rows, length, 16}), "attention_output");
}

// GPT-2 as in its paper and code.
template <class Dropout>
at::Tensor reference_logits(const Gpt& model, const at::Tensor& tokens, const Dropout& dropout) {
  const auto weights = model.named_parameters();
  const auto norm = [&](const at::Tensor& x, const std::string& name) {
    return at::layer_norm(x, {16}, weights[name + ".weight"], weights[name + ".bias"], 1e-5);
  };
  const at::Tensor& embedding = weights["token_embedding.weight"];
  at::Tensor x = dropout(at::embedding(embedding, tokens) + weights["position_embedding.weight"]);
  for (const std::string block : {"blocks.0.", "blocks.1."}) {
    x = x + dropout(gpt2_attention(norm(x, block + "attention_norm"), weights, block, dropout));
    const at::Tensor inner =
        at::linear(norm(x, block + "mlp_norm"), weights[block + "mlp_input.weight"], weights[block + "mlp_input.bias"]);
    const at::Tensor gelu =
        0.5 * inner * (1 + at::tanh(std::sqrt(2 / M_PI) * (inner + 0.044715 * inner.pow(3))));  // gelu_new
    x = x + dropout(at::linear(gelu, weights[block + "mlp_output.weight"], weights[block + "mlp_output.bias"]));
  }
  return norm(x, "final_norm").matmul(embedding.t());
}

// Weights of another scale than new ones, so that every part matters. Logits are sums of some 16 products of numbers of
// about 1: 1e-5 is a hundred units in the last place.
TEST(Gpt, ComputesAndDropsWhatGpt2Does) {
  Gpt model(kTinyGpt2);
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : model.parameters()) parameter.normal_(0, 0.3);
  }
  const at::Tensor tokens = gpt2_tokens({3, kTinyGpt2.context}, 2);
  const at::Tensor without = model.logits(tokens);
  EXPECT_TRUE(without.allclose(reference_logits(model, tokens, [](const at::Tensor& x) { return x; }), 1e-5, 1e-5));
  model.regularize({.dropout = kDropout});
  at::manual_seed(6);
  const at::Tensor with = model.logits(tokens);
  at::manual_seed(6);
  const auto drop = [](const at::Tensor& x) { return at::dropout(x, kDropout, /*train=*/true); };
  EXPECT_TRUE(with.allclose(reference_logits(model, tokens, drop), 1e-5, 1e-5));
  EXPECT_FALSE(with.allclose(without, 1e-2, 1e-2));
}

TEST(Gpt, DropsNothingInEvaluationModeNorWithoutAShare) {
  Gpt model(kTinyGpt2);
  const at::Tensor tokens = gpt2_tokens({3, kTinyGpt2.context}, 4);
  const at::Tensor state = generator_state();
  const at::Tensor expected = model.logits(tokens);
  model.regularize({.dropout = kDropout});
  model.eval();
  EXPECT_TRUE(model.logits(tokens).equal(expected));
  EXPECT_TRUE(generator_state().equal(state));
  model.train();
  EXPECT_FALSE(model.logits(tokens).equal(expected));
  EXPECT_FALSE(generator_state().equal(state));
}

TEST(Gpt, SmoothsLabelsInTrainingOnly) {
  Gpt model(kTinyGpt2);
  const Batch batch = gpt2_batch(5);
  const double hard = model.forward(batch).item<double>();
  const double even = -model.logits(batch.inputs).log_softmax(-1).mean().item<double>();
  model.regularize({.label_smoothing = 0.25});
  // Sums of 36 * 11 terms of about 2.4 in a different order.
  EXPECT_NEAR(model.forward(batch).item<double>(), 0.75 * hard + 0.25 * even, 1e-5);
  model.eval();
  EXPECT_EQ(model.forward(batch).item<double>(), hard);
}

TEST(Regularize, NamesAShareThatIsOutOfItsRange) {
  Gpt model(kTinyGpt2);
  const auto message = [&](const Regularization& shares) {
    return error_message<c10::ValueError>([&] { model.regularize(shares); });
  };
  EXPECT_EQ(message({.dropout = 1}), "dropout: must be at least 0 and below 1, but is 1");
  EXPECT_EQ(message({.dropout = NAN}), "dropout: must be at least 0 and below 1, but is nan");
  EXPECT_EQ(message({.label_smoothing = -0.5}), "label_smoothing: must be at least 0 and below 1, but is -0.5");
}

TEST(Regularize, NamesWhatTheModelDoesNotHave) {
  const auto message = [](const std::string& model, const Regularization& shares) {
    return error_message<c10::ValueError>([&] { create_model(model)->regularize(shares); });
  };
  EXPECT_EQ(message("mlp", {.dropout = 0.5}), "dropout: has no effect with the model Mlp");
  EXPECT_EQ(message("ddp_comm_hook_task", {.label_smoothing = 0.5}).substr(0, 31), "label_smoothing: has no effect ");
  EXPECT_EQ(message("ddp_comm_hook_task", {}), "nothing was thrown");
}

}  // namespace
}  // namespace narrowcast::models
