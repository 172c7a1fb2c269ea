// Quantised state dicts and conversion of torch::nn modules.
#include "models/weight_only_int8.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <set>

#include <narrowcast/char_gpt.h>
#include <narrowcast/mlp.h>
#include <narrowcast/weight_only_int8.h>
#include "tests/support/error_message.h"

namespace narrowcast::models {
namespace {

using testing::error_message;
using torch::nn::Sequential;

std::set<std::string> keys_of(const StateDict& state) {
  std::set<std::string> keys;
  for (const auto& [name, tensor] : state) keys.insert(name);
  return keys;
}

// The module's parameters and buffers by name.
StateDict state_of(const torch::nn::Module& module) {
  StateDict state;
  for (const auto& items : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& item : items) state.emplace(item.key(), item.value().detach());
  }
  return state;
}

void expect_equal(const StateDict& actual, const StateDict& expected) {
  ASSERT_EQ(keys_of(actual), keys_of(expected));
  for (const auto& [name, tensor] : expected) {
    EXPECT_EQ(actual.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(actual.at(name).equal(tensor)) << name;
  }
}

constexpr MlpOptions kTinyMlp = {.inputs = 6, .hidden = 5, .layers = 1, .classes = 3};
constexpr CharGptOptions kTinyGpt = {.layers = 1, .heads = 2, .width = 16, .context = 8, .vocabulary_size = 11};

TEST(WeightOnlyInt8StateDict, HasTheReferencesEntries) {
  const auto model = std::make_shared<Mlp>(kTinyMlp);
  model->to(at::kBFloat16);
  const StateDict before = state_of(*model);
  const StateDict state = WeightOnlyInt8QuantHandler(model).create_quantized_state_dict();
  EXPECT_EQ(keys_of(state), (std::set<std::string>{"layers.0.weight", "layers.0.scales", "layers.0.bias",
                                                   "layers.1.weight", "layers.1.scales", "layers.1.bias"}));
  for (const std::string layer : {"layers.0", "layers.1"}) {
    const auto [codes, scales, unused] =
        dynamically_quantize_per_channel(before.at(layer + ".weight").to(at::kFloat), -128, 127, at::kChar);
    EXPECT_TRUE(state.at(layer + ".weight").equal(codes));
    EXPECT_EQ(state.at(layer + ".scales").scalar_type(), at::kBFloat16);
    EXPECT_TRUE(state.at(layer + ".scales").equal(scales.to(at::kBFloat16)));
    EXPECT_TRUE(state.at(layer + ".bias").equal(before.at(layer + ".bias")));
    EXPECT_FALSE(state.at(layer + ".bias").requires_grad());
  }
  expect_equal(state_of(*model), before);
}

TEST(WeightOnlyInt8StateDict, LeavesWhatIsNoLinearAsItIs) {
  const auto model = std::make_shared<CharGpt>(kTinyGpt);
  const StateDict before = state_of(*model);
  const StateDict state = WeightOnlyInt8QuantHandler(model).create_quantized_state_dict();
  EXPECT_EQ(state.size(), before.size() + 4);  // scales of the four layers of one block
  for (const std::string name : {"token_embedding.weight", "final_norm.bias", "blocks.0.mlp_norm.weight"}) {
    EXPECT_TRUE(state.at(name).equal(before.at(name))) << name;
  }
  EXPECT_EQ(state.at("blocks.0.mlp_input.weight").scalar_type(), at::kChar);
}

TEST(WeightOnlyInt8Conversion, GivesTheBundledModelsTheStateDict) {
  const std::vector<std::shared_ptr<torch::nn::Module>> models{std::make_shared<Mlp>(kTinyMlp),
                                                               std::make_shared<CharGpt>(kTinyGpt)};
  for (const auto& model : models) {
    WeightOnlyInt8QuantHandler handler(model);
    const StateDict expected = handler.create_quantized_state_dict();
    EXPECT_EQ(handler.convert_for_runtime(), model);
    expect_equal(state_of(*model), expected);
    expect_equal(handler.create_quantized_state_dict(), expected);
  }
}

// One layer, so that the output's error is that of the weights: at most half a scale each, whose sum over |x| bounds
// it; the float32 sums of both sides add 2 * (6 + 3) * 2^-24 of the terms.
TEST(WeightOnlyInt8Conversion, ChangesTheOutputByAtMostTheRoundingOfTheWeights) {
  const auto model = std::make_shared<Mlp>(MlpOptions{.inputs = 6, .layers = 0, .classes = 3});
  const at::Tensor x = at::rand({40, 6});
  const at::Tensor before = model->logits(x).detach();
  const at::Tensor weight = model->named_parameters()["layers.0.weight"].detach().abs();
  WeightOnlyInt8QuantHandler(model).convert_for_runtime();
  const at::Tensor scales = model->named_buffers()["layers.0.scales"];
  const at::Tensor bound = x.sum(1, true) * scales / 2 + (at::linear(x, weight) + 1) * (18 * 0x1p-24) + 1e-7;
  const at::Tensor change = (model->logits(x) - before).abs();
  EXPECT_TRUE(change.le(bound).all().item<bool>());
  EXPECT_GT(change.max().item<float>(), 0);
}

TEST(WeightOnlyInt8Conversion, ConvertedModelsStillGenerate) {
  const auto model = std::make_shared<CharGpt>(kTinyGpt);
  const at::Tensor tokens = at::randint(11, {2, 8}, at::kLong);
  const at::Tensor before = model->logits(tokens).detach();
  WeightOnlyInt8QuantHandler(model).convert_for_runtime();
  const at::Tensor after = model->logits(tokens);
  EXPECT_FALSE(after.equal(before));
  EXPECT_LT((after - before).norm().item<float>(), 0.1 * before.norm().item<float>());
}

// A Sequential that can be in another one.
struct Inner : torch::nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  at::Tensor forward(const at::Tensor& x) { return SequentialImpl::forward(x); }
};

TEST(WeightOnlyInt8Conversion, ReplacesLayersOfNestedSequentials) {
  const torch::nn::Linear shared(4, 4);
  const auto inner = std::make_shared<Inner>(torch::nn::ReLU(), shared);
  Sequential net(torch::nn::Linear(6, 4), inner, shared, Linear(4, 2));
  const at::Tensor x = at::randn({3, 6});
  WeightOnlyInt8QuantHandler handler(net.ptr());
  const StateDict expected = handler.create_quantized_state_dict();
  handler.convert_for_runtime();
  expect_equal(state_of(*net), expected);
  const auto layer = [&](const std::string& name, const at::Tensor& input) {
    return weight_only_int8_linear(input, expected.at(name + ".weight"), expected.at(name + ".scales"),
                                   expected.at(name + ".bias"));
  };
  const at::Tensor hidden = layer("1.1", layer("0", x).relu());
  EXPECT_TRUE(net->forward(x).equal(layer("3", layer("2", hidden))));
  EXPECT_EQ(net->ptr(2), inner->ptr(1));
  EXPECT_NE(net->ptr(0)->as<WeightOnlyInt8Linear>(), nullptr);
}

struct Net : torch::nn::Module {
  Net() {
    body = register_module("body", Sequential(Linear(2, 2)));
    head = register_module("head", torch::nn::Linear(2, 2));
  }
  at::Tensor forward(const at::Tensor& x) { return head(body->forward(x)); }
  Sequential body{nullptr};
  torch::nn::Linear head{nullptr};
};

TEST(WeightOnlyInt8ConversionErrors, NameTheSubmoduleAndChangeNothing) {
  const auto net = std::make_shared<Net>();
  const Sequential outer(torch::nn::Linear(2, 2), net);
  const StateDict before = state_of(*outer);
  const std::string message =
      error_message<c10::ValueError>([&] { WeightOnlyInt8QuantHandler(outer.ptr()).convert_for_runtime(); });
  EXPECT_EQ(message.find("submodule '1.head' is a torch::nn::Linear in a "), 0) << message;
  expect_equal(state_of(*outer), before);
}

TEST(WeightOnlyInt8ConversionErrors, CoverListsRootsAndNothing) {
  const torch::nn::ModuleList list(torch::nn::Linear(2, 2));
  const std::string message =
      error_message<c10::ValueError>([&] { WeightOnlyInt8QuantHandler(list.ptr()).convert_for_runtime(); });
  EXPECT_EQ(message.find("submodule '0' is a torch::nn::Linear in a torch::nn::ModuleListImpl"), 0) << message;
  const torch::nn::Linear root(2, 2);
  EXPECT_EQ(error_message<c10::ValueError>([&] {
              WeightOnlyInt8QuantHandler(root.ptr()).convert_for_runtime();
            }).find("the module is itself a torch::nn::Linear"),
            0);
  EXPECT_EQ(error_message<c10::ValueError>([] { WeightOnlyInt8QuantHandler(nullptr); }), "module is null");
}

}  // namespace
}  // namespace narrowcast::models
