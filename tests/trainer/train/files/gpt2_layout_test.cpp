#include "trainer/train/files/gpt2_layout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include <narrowcast/errors.h>
#include <narrowcast/gpt.h>
#include "tests/support/error_message.h"
#include "tests/support/gpt2_weights.h"
#include "trainer/train/files/model_file.h"

namespace narrowcast::files {
namespace {

using testing::error_message;
using testing::gpt2_weights;

constexpr models::GptOptions kTinyGpt2 = {.layers = 2, .heads = 4, .width = 16, .context = 8, .vocabulary_size = 11};

// Applies `change` to good tensors and returns the resulting error.
template <class Change>
std::string error_after(const Change& change) {
  models::StateDict tensors = gpt2_weights();
  change(tensors);
  return error_message<CorruptInputError>([&] { gpt2_options("m", without_gpt2_extras("m", tensors)); });
}

TEST(Gpt2Layout, HasHuggingFacesNamesAndShapes) {
  const models::Gpt model(kTinyGpt2);
  const models::StateDict tensors = in_gpt2_layout(state_of(model));
  const models::StateDict expected = gpt2_weights();
  ASSERT_EQ(tensors.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(tensors.contains(name)) << name;
    EXPECT_EQ(tensors.at(name).sizes(), tensor.sizes()) << name;
  }
}

// Includes square weights, whose shape does not show whether they are transposed.
TEST(Gpt2Layout, TransposesTheWeightsOfLayersAlone) {
  const models::Gpt model(kTinyGpt2);
  const auto weights = model.named_parameters();
  const models::StateDict tensors = in_gpt2_layout(state_of(model));
  EXPECT_TRUE(tensors.at("h.1.attn.c_proj.weight").equal(weights["blocks.1.attention_output.weight"].t()));
  EXPECT_TRUE(tensors.at("wte.weight").equal(weights["token_embedding.weight"]));
  EXPECT_TRUE(tensors.at("h.1.ln_2.weight").equal(weights["blocks.1.mlp_norm.weight"]));
}

TEST(Gpt2Layout, WhatIsCopiedIntoItIsTheModels) {
  const models::Gpt model(kTinyGpt2);
  for (const auto& [name, tensor] : in_gpt2_layout(state_of(model))) tensor.fill_(3);
  for (const auto& parameter : model.named_parameters()) {
    EXPECT_EQ(parameter.value().min().item<float>(), 3) << parameter.key();
    EXPECT_EQ(parameter.value().max().item<float>(), 3) << parameter.key();
  }
}

TEST(Gpt2Layout, NamesModulesToo) {
  EXPECT_EQ(gpt2_name("blocks.10.mlp_input"), "h.10.mlp.c_fc");
  EXPECT_EQ(gpt2_name("other.weight"), "other.weight");
}

TEST(Gpt2Layout, IsKnownByItsNames) {
  EXPECT_TRUE(has_gpt2_layout(gpt2_weights()));
  EXPECT_TRUE(has_gpt2_layout({{"transformer.wte.weight", at::ones({1})}}));
  EXPECT_FALSE(has_gpt2_layout(state_of(models::Gpt(kTinyGpt2))));
}

TEST(Gpt2Layout, ShapesAreOptions) {
  const models::ModelOptions expected = {{"layers", 3}, {"width", 32}, {"context", 5}, {"vocabulary_size", 7}};
  EXPECT_EQ(gpt2_options("m", gpt2_weights({.layers = 3, .width = 32, .context = 5, .vocabulary = 7})), expected);
}

// Names as in a saved GPT2LMHeadModel, with masks as in the first published files.
TEST(Gpt2Layout, LeavesOutPrefixMasksAndATiedHead) {
  const models::StateDict plain = gpt2_weights();
  models::StateDict tensors = {{"lm_head.weight", plain.at("wte.weight").clone()}};
  for (const auto& [name, tensor] : plain) tensors["transformer." + name] = tensor;
  tensors["transformer.h.0.attn.bias"] = at::ones({1, 1, 8, 8}).tril();
  tensors["transformer.h.1.attn.masked_bias"] = at::full({}, -1e4);
  const models::StateDict left = without_gpt2_extras("m", tensors);
  ASSERT_EQ(left.size(), plain.size());
  for (const auto& [name, tensor] : plain) EXPECT_TRUE(left.at(name).equal(tensor)) << name;
}

TEST(Gpt2Layout, WrongTensorsAreNamed) {
  EXPECT_EQ(error_after([](models::StateDict& tensors) {
              tensors["lm_head.weight"] = at::ones({11, 16});
            }),
            "m: tensor 'lm_head.weight' is not equal to 'wte.weight', as it is in GPT-2");
  EXPECT_EQ(
      error_after([](models::StateDict& tensors) { tensors["lm_head.weight"] = tensors["wte.weight"].to(at::kHalf); }),
      "m: tensor 'lm_head.weight' is not equal to 'wte.weight', as it is in GPT-2");
  EXPECT_EQ(error_after([](models::StateDict& tensors) { tensors["transformer.ln_f.bias"] = at::ones({16}); }),
            "m: tensor 'transformer.ln_f.bias' occurs twice, with and without 'transformer.'");
  EXPECT_EQ(error_after([](models::StateDict& tensors) { tensors.erase("wpe.weight"); }),
            "m: the model's tensor 'wpe.weight' is missing");
  EXPECT_EQ(error_after([](models::StateDict& tensors) { tensors["wte.weight"] = at::ones({11}); }),
            "m: tensor 'wte.weight' has the shape [11], but must have 2 dimensions");
}

}  // namespace
}  // namespace narrowcast::files
