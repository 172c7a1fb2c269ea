#include <narrowcast/mlp.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <narrowcast/models.h>

namespace narrowcast::models {
namespace {

constexpr MlpOptions kSmallMlp = {.inputs = 6, .hidden = 5, .layers = 2, .classes = 3};

at::Tensor random_images(at::IntArrayRef sizes) {
  return at::randint(256, sizes, at::detail::createCPUGenerator(1), at::kByte);
}

TEST(Mlp, TakesImagesAndRowsAlike) {
  Mlp model(kSmallMlp);
  const at::Tensor images = random_images({4, 2, 3});
  EXPECT_EQ(model.logits(images).sizes(), at::IntArrayRef({4, 3}));
  EXPECT_TRUE(model.logits(images).equal(model.logits(images.view({4, 6}))));
}

TEST(Mlp, ItsLastLayerIsItsHead) {
  const Mlp model(kSmallMlp);
  ASSERT_EQ(model.embeddings_and_heads().size(), 1U);
  EXPECT_TRUE(model.embeddings_and_heads()[0].is_same(model.named_parameters()["layers.2.weight"]));
}

TEST(Mlp, BytesAreScaledToOneAndFloatsAreNot) {
  Mlp model(kSmallMlp);
  const at::Tensor images = random_images({4, 2, 3});
  EXPECT_TRUE(model.logits(images).equal(model.logits(images.to(at::kFloat) / 255)));
  EXPECT_FALSE(model.logits(images).equal(model.logits(images.to(at::kFloat))));
}

TEST(Mlp, IsLinearLayersWithReluBetween) {
  Mlp model(kSmallMlp);
  const auto parameters = model.named_parameters();
  ASSERT_EQ(parameters.size(), 6);
  at::Tensor x = random_images({4, 6}).to(at::kFloat) / 255;
  const at::Tensor images = x;
  for (const std::string layer : {"layers.0", "layers.1", "layers.2"}) {
    x = at::linear(layer == "layers.0" ? x : x.relu(), parameters[layer + ".weight"], parameters[layer + ".bias"]);
  }
  EXPECT_TRUE(model.logits(images).equal(x));
}

TEST(Mlp, NoHiddenLayerMakesALinearClassifier) {
  Mlp model({.inputs = 6, .layers = 0, .classes = 3});
  ASSERT_EQ(model.parameters().size(), 2);
  EXPECT_EQ(model.parameters()[0].sizes(), at::IntArrayRef({3, 6}));
}

TEST(Mlp, LossIsCrossEntropyAndReachesEveryParameter) {
  Mlp model(kSmallMlp);
  const Batch batch = {random_images({4, 2, 3}), at::tensor({0, 2, 1, 1}, at::kLong)};
  const at::Tensor loss = model.forward(batch);
  const at::Tensor expected = -model.logits(batch.inputs).log_softmax(1).gather(1, batch.targets.unsqueeze(1)).mean();
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 4 * 0x1p-24 * 4);  // four float32 terms below 4
  loss.backward();
  for (const auto& parameter : model.named_parameters()) {
    EXPECT_GT(parameter->grad().abs().sum().item<double>(), 0) << parameter.key();
  }
}

TEST(Mlp, SmoothsLabelsInTrainingOnly) {
  Mlp model(kSmallMlp);
  const Batch batch = {random_images({4, 2, 3}), at::tensor({0, 2, 1, 1}, at::kLong)};
  const double hard = model.forward(batch).item<double>();
  const double even = -model.logits(batch.inputs).log_softmax(1).mean().item<double>();
  model.regularize({.label_smoothing = 0.25});
  EXPECT_NEAR(model.forward(batch).item<double>(), 0.75 * hard + 0.25 * even, 12 * 0x1p-24 * 4);  // terms below 4
  model.eval();
  EXPECT_EQ(model.forward(batch).item<double>(), hard);
}

TEST(Mlp, WrongInputsAreErrors) {
  Mlp model(kSmallMlp);
  EXPECT_THROW(model.logits(random_images({4, 5})), c10::ValueError);
  EXPECT_THROW(model.logits(random_images({6})), c10::ValueError);
  EXPECT_THROW(model.logits(at::zeros({4, 6}, at::kLong)), c10::TypeError);
  EXPECT_THROW(model.forward({random_images({4, 6}), at::zeros({3}, at::kLong)}), c10::ValueError);
  EXPECT_THROW(model.forward({random_images({4, 6}), at::zeros({4})}), c10::TypeError);
}

TEST(Mlp, OptionsRoundTrip) {
  const ModelOptions expected = {{"inputs", 6}, {"hidden", 5}, {"layers", 2}, {"classes", 3}};
  EXPECT_EQ(Mlp(kSmallMlp).options(), expected);
  EXPECT_EQ(create_model("mlp", expected)->options(), expected);
  EXPECT_THROW(Mlp({.classes = 0}), c10::ValueError);
}

}  // namespace
}  // namespace narrowcast::models
