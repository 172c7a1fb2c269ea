#include "models/imported/script_model.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "tests/models/imported/script_modules.h"
#include "tests/support/error_message.h"
#include "tests/support/trained_modules.h"

namespace narrowcast::models {
namespace {

using ::testing::AllOf;
using testing::digit_net;
using ::testing::ElementsAre;
using testing::error_message;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kGivesLoss;
using testing::save_and_load;

// 10 noise images, one per class.
Batch some_digits() {
  return {at::randint(256, {10, 8, 8}, at::detail::createCPUGenerator(3), at::kByte), at::arange(10, at::kLong)};
}

ScriptModel classifier() { return ScriptModel(digit_net(), {.name = "m.pt", .loss = Loss::kCrossEntropy}); }

// A module with `forward` and the 1-D parameter `w`.
torch::jit::Module module_of(const std::string& forward, const at::Tensor& w = at::ones({3}).requires_grad_()) {
  torch::jit::Module module("M");
  module.register_parameter("w", w, /*is_buffer=*/false);
  module.define(forward);
  return module;
}

TEST(ScriptModel, HasTheModulesNamesAndTensors) {
  const torch::jit::Module net = digit_net();
  const ScriptModel model(net, {.name = "m.pt", .loss = Loss::kCrossEntropy});
  EXPECT_THAT(model.named_parameters().keys(),
              ElementsAre("first.weight", "first.bias", "norm.weight", "norm.bias", "second.weight", "second.bias"));
  EXPECT_THAT(model.named_buffers().keys(), ElementsAre("norm.running_mean", "norm.running_var"));
  for (const auto& parameter : net.named_parameters()) {
    EXPECT_TRUE(model.named_parameters()[parameter.name].is_same(parameter.value)) << parameter.name;
  }
}

// The second one has the name that TorchScript gives it. A class of the same name may be another one.
TEST(ScriptModel, KnowsItsEmbeddings) {
  torch::jit::Module net = module_of("def forward(self, x, y):\n  return self.w.sum() + x.sum()\n");
  const auto add = [&](const std::string& name, const std::string& type) {
    torch::jit::Module layer(type);
    layer.register_parameter("weight", at::ones({4, 2}).requires_grad_(), /*is_buffer=*/false);
    net.register_module(name, layer);
    return layer.attr("weight").toTensor();
  };
  const at::Tensor tokens = add("tokens", "__torch__.torch.nn.modules.sparse.Embedding");
  const at::Tensor positions = add("positions", "__torch__.torch.nn.modules.sparse.___torch_mangle_3.Embedding");
  add("head", "__torch__.torch.nn.modules.linear.Linear");
  add("other", "__torch__.mine.Embedding");
  const ScriptModel model(net, {.name = "m.pt"});
  const std::vector<at::Tensor> found = model.embeddings_and_heads();
  ASSERT_EQ(found.size(), 2U);
  EXPECT_TRUE(found[0].is_same(tokens));
  EXPECT_TRUE(found[1].is_same(positions));
  EXPECT_TRUE(found[0].is_same(model.named_parameters()["tokens.weight"]));
}

// As with the embedding and the head of a language model; also after saving and loading.
TEST(ScriptModel, ATiedWeightIsOneParameter) {
  torch::jit::Module net = digit_net();
  torch::jit::Module tied("Tied");
  tied.register_parameter("weight", net.attr("first").toModule().attr("weight").toTensor(), /*is_buffer=*/false);
  net.register_module("tied", tied);
  net.register_module("again", net.attr("second").toModule());
  const ScriptModel model(save_and_load(net), {.name = "m.pt", .loss = Loss::kCrossEntropy});
  EXPECT_EQ(model.parameters().size(), 6U);
}

TEST(ScriptModel, BothForwardsGiveTheSameLoss) {
  ScriptModel predicts = classifier();
  ScriptModel gives_loss(digit_net(kGivesLoss), {.name = "m.pt"});
  predicts.eval();
  gives_loss.eval();
  const Batch batch = some_digits();
  EXPECT_TRUE(predicts.forward(batch).equal(gives_loss.forward(batch)));
  EXPECT_TRUE(predicts.forward(batch).equal(at::cross_entropy_loss(predicts.logits(batch.inputs), batch.targets)));
}

// Logits that are the parameter itself, so that they are the same in both modes.
TEST(ScriptModel, SmoothsLabelsOfCrossEntropyInTrainingOnly) {
  const at::Tensor w = at::tensor({0.5, -1.0, 2.0}, at::kFloat).repeat({4, 1}).requires_grad_();
  const torch::jit::Module module = module_of("def forward(self, x: Tensor) -> Tensor:\n    return self.w\n", w);
  ScriptModel model(module, {.name = "m.pt", .loss = Loss::kCrossEntropy});
  const Batch batch = {at::zeros({4, 2}), at::tensor({0, 2, 1, 1}, at::kLong)};
  const double hard = model.forward(batch).item<double>();
  model.regularize({.label_smoothing = 0.25});
  const double even = -w.log_softmax(1).mean().item<double>();
  EXPECT_NEAR(model.forward(batch).item<double>(), 0.75 * hard + 0.25 * even, 12 * 0x1p-24 * 4);  // terms below 4
  model.eval();
  EXPECT_EQ(model.evaluate(batch).loss.item<double>(), hard);
  ScriptModel of_values(module, {.name = "m.pt", .loss = Loss::kMse});
  EXPECT_EQ(error_message<c10::ValueError>([&] { of_values.regularize({.label_smoothing = 0.25}); }),
            "label_smoothing: has no effect with the model ScriptModel");
}

TEST(ScriptModel, ArgumentsWithADefaultNeedNotBeGiven) {
  const std::string forward =
      "def forward(self, x: Tensor, scale: float = 2.) -> Tensor:\n    return x * self.w * scale\n";
  EXPECT_FALSE(returns_loss(module_of(forward), "m.pt"));
  ScriptModel model(module_of(forward), {.name = "m.pt", .loss = Loss::kMse});
  EXPECT_TRUE(model.predictions(at::ones({3})).equal(at::full({3}, 2.0)));
}

TEST(ScriptModel, ModeIsTheModules) {
  ScriptModel model = classifier();
  const Batch batch = some_digits();
  const auto mean = [&] { return model.named_buffers()["norm.running_mean"].clone(); };
  const at::Tensor initial = mean();
  model.eval();
  EXPECT_TRUE(model.forward(batch).equal(model.forward(batch)));
  EXPECT_TRUE(mean().equal(initial));
  model.train();
  EXPECT_FALSE(model.forward(batch).equal(model.forward(batch))) << "dropout draws anew";
  EXPECT_FALSE(mean().equal(initial));
  torch::jit::Module saved_for_inference = digit_net();
  saved_for_inference.eval();
  EXPECT_FALSE(ScriptModel(saved_for_inference, {.name = "m.pt", .loss = Loss::kMse}).is_training());
}

// A resumed training begins with a first pass again.
TEST(ScriptModel, AllPassesRoundAlike) {
  ScriptModel model = classifier();
  const Batch batch = some_digits();
  std::vector<at::Tensor> gradients;
  for (int pass = 0; pass < 4; ++pass) {
    at::manual_seed(5);
    gradients.push_back(torch::autograd::grad({model.forward(batch)}, {model.parameters()[0]})[0]);
    EXPECT_TRUE(gradients[pass].equal(gradients[0])) << pass;
  }
}

// A sum of three squares below 10, each with a rounding error of 2^-24.
TEST(ScriptModel, OtherLossesAreMeansOverTheTargets) {
  const std::string forward = "def forward(self, x: Tensor) -> Tensor:\n    return x * self.w\n";
  const Batch batch = {at::tensor({-1.0, 0.0, 3.0}), at::tensor({1, 0, 1}, at::kLong)};
  ScriptModel mse(module_of(forward), {.name = "m.pt", .loss = Loss::kMse});
  EXPECT_NEAR(mse.forward(batch).item<double>(), (4.0 + 0 + 4) / 3, 1e-5);
  ScriptModel bce(module_of(forward), {.name = "m.pt", .loss = Loss::kBceWithLogits});
  EXPECT_NEAR(bce.forward(batch).item<double>(), (std::log1p(std::exp(1)) + std::log(2) + std::log1p(std::exp(-3))) / 3,
              1e-5);
  EXPECT_FALSE(bce.evaluate(batch).accuracy.defined());
  ScriptModel columns(module_of("def forward(self, x: Tensor) -> Tensor:\n    return (x * self.w).unsqueeze(1)\n"),
                      {.name = "m.pt", .loss = Loss::kMse});
  EXPECT_TRUE(columns.forward(batch).equal(mse.forward(batch))) << "one prediction per target, in a column";
}

// The same number of elements with other dimensions: [B, classes, H] with `classes` equal to W, and columns that are
// rows of the targets.
TEST(ScriptModel, WhatIsTransposedIsNamed) {
  const auto message = [](Loss loss, at::IntArrayRef outputs, at::IntArrayRef targets) {
    const std::string forward = "def forward(self, x: Tensor) -> Tensor:\n    return x * self.w\n";
    ScriptModel model(module_of(forward, at::ones({1}).requires_grad_()), {.name = "m.pt", .loss = loss});
    const Batch batch = {at::rand(outputs), at::zeros(targets, loss == Loss::kCrossEntropy ? at::kLong : at::kFloat)};
    return error_message<c10::ValueError>([&] { model.forward(batch); });
  };
  EXPECT_EQ(message(Loss::kCrossEntropy, {2, 5, 3, 5}, {2, 3, 5}),
            "m.pt: its forward must return one row of logits per target, classes last, but returns [2, 5, 3, 5] for "
            "targets of shape [2, 3, 5]");
  EXPECT_EQ(message(Loss::kCrossEntropy, {2, 3, 1, 5}, {2, 1, 3}), "nothing was thrown");
  for (const Loss loss : {Loss::kMse, Loss::kBceWithLogits}) {
    EXPECT_THAT(message(loss, {2, 3, 2}, {2, 2, 3}),
                HasSubstr("in the same shape, but returns [2, 3, 2] for targets of shape [2, 2, 3]"));
    EXPECT_THAT(message(loss, {2, 6}, {2, 2, 3}), HasSubstr("returns [2, 6] for targets of shape [2, 2, 3]"));
    EXPECT_EQ(message(loss, {2, 1, 3, 1}, {2, 3}), "nothing was thrown");
  }
}

// Targets are checked before they are moved to a GPU.
TEST(ScriptModel, ChecksTargetsOfBinaryCrossEntropyAlone) {
  const auto message = [](Loss loss, const at::Tensor& targets) {
    const ScriptModel model(digit_net(), {.name = "m.pt", .loss = loss});
    return error_message<c10::ValueError>([&] { model.check_targets(targets); });
  };
  EXPECT_EQ(message(Loss::kBceWithLogits, at::tensor({0.0, 1.5})),
            "loss: bce_with_logits needs targets in 0..1, but the data has targets from 0 to 1.5");
  EXPECT_EQ(message(Loss::kBceWithLogits, at::tensor({0.0, 1.0})), "nothing was thrown");
  EXPECT_EQ(message(Loss::kMse, at::tensor({-1.0, 1.5})), "nothing was thrown");
}

TEST(ScriptModel, CountsRightAnswers) {
  ScriptModel model(module_of("def forward(self, x: Tensor) -> Tensor:\n    return x * self.w\n"),
                    {.name = "m.pt", .loss = Loss::kCrossEntropy});
  const at::Tensor logits = at::tensor({9.0, 0.0, 0.0, 0.0, 9.0, 0.0, 0.0, 0.0, 9.0, 9.0, 0.0, 0.0}).view({2, 2, 3});
  const Evaluated evaluated = model.evaluate({logits, at::tensor({0, 1, 2, 2}, at::kLong).view({2, 2})});
  EXPECT_EQ(evaluated.accuracy.item<double>(), 0.75);
  EXPECT_TRUE(evaluated.loss.equal(model.forward({logits, at::tensor({0, 1, 2, 2}, at::kLong).view({2, 2})})));
}

// -100 is the class that PyTorch's function ignores.
TEST(ScriptModel, ClassesCountFrom0) {
  ScriptModel model(module_of("def forward(self, x: Tensor) -> Tensor:\n    return x * self.w\n"),
                    {.name = "m.pt", .loss = Loss::kCrossEntropy});
  for (const int64_t wrong : {-1, -100}) {
    const Batch batch = {at::ones({2, 3}), at::tensor({int64_t{1}, wrong}, at::kLong)};
    const std::string line =
        c10::str("loss: cross_entropy needs classes from 0 as targets, but the data has a target ", wrong);
    EXPECT_EQ(error_message<c10::ValueError>([&] { model.forward(batch); }), line);
    EXPECT_EQ(error_message<c10::ValueError>([&] { model.evaluate(batch); }), line);
  }
}

TEST(ScriptModel, LogitsDoForAllExpectedClasses) {
  ScriptModel model(module_of("def forward(self, x: Tensor) -> Tensor:\n    return x * self.w\n"),
                    {.name = "m.pt", .loss = Loss::kCrossEntropy});
  const Batch batch = {at::ones({2, 3}), at::tensor({0, 1}, at::kLong)};
  model.expect_classes(3);
  EXPECT_NO_THROW(model.check_trains(batch));
  model.expect_classes(4);
  EXPECT_EQ(error_message<c10::ValueError>([&] { model.check_trains(batch); }),
            "m.pt: returns logits for 3 classes, but the data needs 4");
}

std::string made_error(const torch::jit::Module& module, const std::optional<Loss>& loss) {
  return error_message<c10::ValueError>([&] { ScriptModel(module, {.name = "m.pt", .loss = loss}); });
}

TEST(ScriptModel, ASignatureThatDoesNotFitIsNamed) {
  EXPECT_EQ(made_error(digit_net(kGivesLoss), Loss::kMse),
            "loss: has no effect with m.pt, whose forward(Tensor images, Tensor targets) returns the loss itself");
  EXPECT_EQ(made_error(digit_net(), std::nullopt),
            "loss: must be cross_entropy, mse or bce_with_logits for m.pt, whose forward(Tensor images) takes no "
            "targets and returns predictions");
  const std::string three = "def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:\n    return a\n";
  EXPECT_EQ(
      made_error(module_of(three), Loss::kMse),
      "m.pt: its forward must take the tensors (inputs), and return predictions, or (inputs, targets), and return "
      "the loss, but is forward(Tensor a, Tensor b, Tensor c)");
  EXPECT_THAT(made_error(module_of("def forward(self, n: int) -> int:\n    return n\n"), Loss::kMse),
              HasSubstr("but is forward(int n)"));
  EXPECT_EQ(made_error(module_of("def run(self, x: Tensor) -> Tensor:\n    return x\n"), Loss::kMse),
            "m.pt: has no method forward");
}

TEST(ScriptModel, WhatItsForwardDoesWrongIsNamed) {
  const Batch batch = {at::arange(6, at::kLong).view({2, 3}) % 4, at::arange(1, 7, at::kLong).view({2, 3}) % 4};
  const auto message = [&](const std::string& body, Loss loss) {
    ScriptModel model(module_of("def forward(self, x: Tensor) -> " + body), {.name = "m.pt", .loss = loss});
    return error_message<c10::ValueError>([&] { model.forward(batch); });
  };
  EXPECT_THAT(message("int:\n    return 3\n", Loss::kCrossEntropy),
              HasSubstr("m.pt: its forward must return a tensor of logits, but returns Int"));
  EXPECT_THAT(message("Tensor:\n    return x\n", Loss::kMse),
              HasSubstr("m.pt: its forward must return a tensor of predictions, but returns Tensor of Long"));
  EXPECT_THAT(message("Tensor:\n    return x.sum().float()\n", Loss::kCrossEntropy),
              HasSubstr("for inputs of shape [2, 3] it returns []"));
  EXPECT_THAT(message("Tensor:\n    return x.float()\n", Loss::kCrossEntropy),
              HasSubstr("one row of logits per target, classes last, but returns [2, 3] for targets of shape [2, 3]"));
  EXPECT_THAT(message("Tensor:\n    return x.float().sum(1)\n", Loss::kMse),
              HasSubstr("one prediction per target for the loss mse, in the same shape, but returns [2] for targets of "
                        "shape [2, 3]"));
  EXPECT_THAT(message("Tensor:\n    return x.float()\n", Loss::kBceWithLogits),
              HasSubstr("bce_with_logits needs targets in 0..1, but the data has targets from 0 to 3"));
  EXPECT_THAT(message("Tensor:\n    return torch.zeros([2, 3, 3])\n", Loss::kCrossEntropy),
              HasSubstr("returns logits for 3 classes, but the data has a target 3"));
  EXPECT_THAT(message("Tensor:\n    assert False, 'no such day'\n    return x\n", Loss::kCrossEntropy),
              AllOf(HasSubstr("m.pt: its forward failed on inputs of shape [2, 3]: "), HasSubstr("no such day")));
}

// LibTorch's message has many lines; the first one gives the reason.
TEST(ScriptModel, ADeviceThatIsNotThereIsOneLine) {
  ScriptModel model(
      module_of("def forward(self, x: Tensor) -> Tensor:\n    return x * torch.ones([1], device='hpu')\n"),
      {.name = "m.pt", .loss = Loss::kMse});
  const std::string message = error_message<c10::ValueError>([&] { model.predictions(at::ones({3})); });
  EXPECT_THAT(message, HasSubstr("m.pt: its forward failed on inputs of shape [3]: "));
  EXPECT_THAT(message, ::testing::AnyOf(HasSubstr("HPU"), HasSubstr("hpu")));
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

TEST(ScriptModel, TrainsWhatHasGradients) {
  ScriptModel model = classifier();
  EXPECT_THAT(model.check_trains(some_digits()), IsEmpty());
  for (const at::Tensor& parameter : model.parameters()) {
    EXPECT_FALSE(parameter.grad().defined());
  }
}

TEST(ScriptModel, ParametersWithoutAGradientAreNamed) {
  torch::jit::Module net("Net");
  for (const char* const name : {"w", "aside", "other"}) {
    net.register_parameter(name, at::ones({3}).requires_grad_(), /*is_buffer=*/false);
  }
  net.register_parameter("frozen", at::ones({3}).requires_grad_(false), /*is_buffer=*/false);
  net.define("def forward(self, x: Tensor) -> Tensor:\n    return x * self.w + self.other.detach() + self.frozen\n");
  ScriptModel model(net, {.name = "m.pt", .loss = Loss::kMse});
  EXPECT_THAT(model.check_trains({at::ones({3}), at::zeros({3})}), ElementsAre("aside", "other"));
}

TEST(ScriptModel, WhatCannotBeTrainedIsNamed) {
  const auto message = [](const torch::jit::Module& module) {
    ScriptModel model(module, {.name = "m.pt", .loss = Loss::kMse});
    return error_message<c10::ValueError>([&] { model.check_trains({at::ones({3}), at::ones({3})}); });
  };
  const std::string forward = "def forward(self, x: Tensor) -> Tensor:\n    return x * self.w\n";
  EXPECT_THAT(message(module_of(forward, at::ones({3}))),
              HasSubstr("m.pt: none of its 1 parameters requires a gradient"));
  EXPECT_THAT(message(module_of(forward, at::ones({3}, at::kDouble).requires_grad_())),
              HasSubstr("m.pt: parameter 'w' is Double, but must be float32 to be trained"));
  EXPECT_THAT(message(module_of("def forward(self, x: Tensor) -> Tensor:\n    return x * self.w.detach()\n")),
              HasSubstr("m.pt: its loss depends on no parameter that requires a gradient"));
  EXPECT_THAT(message(module_of("def forward(self, x: Tensor) -> Tensor:\n"
                                "    return torch.embedding(self.w, x.long(), -1, False, True).squeeze(1)\n",
                                at::ones({3, 1}).requires_grad_())),
              HasSubstr("m.pt: parameter 'w' gets sparse gradients"));
}

TEST(ScriptModel, AFrozenModuleHasNothingToTrain) {
  torch::jit::Module net = digit_net();
  net.eval();
  ScriptModel model(torch::jit::freeze(net), {.name = "m.pt", .loss = Loss::kCrossEntropy});
  EXPECT_THAT(
      error_message<c10::ValueError>([&] { model.check_trains(some_digits()); }),
      HasSubstr("m.pt: none of its 0 parameters requires a gradient: there is nothing to train (torch.jit.freeze"));
}

}  // namespace
}  // namespace narrowcast::models
